//! What the tests share: names of their own, a second client, a proxy that can misbehave.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use attune_bus::{Bus, Delivery, Outgoing, PublishError, Subscriber, Subscription, Topic};
use attune_bus_rabbitmq::{RabbitBus, RabbitOptions};
use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

/// How long anything may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

fn from_environment(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set; run: scripts/services up && eval \"$(scripts/services env)\"")
    })
}

/// The broker to test with.
pub(crate) fn url() -> String {
    from_environment("ATTUNE_TEST_AMQP_URL")
}

/// The broker's URL with another virtual host.
pub(crate) fn url_of_vhost(vhost: &str) -> String {
    let url = url();
    let (front, _) = url.rsplit_once('/').expect("the URL names a virtual host");
    format!("{front}/{vhost}")
}

/// Its host and port.
pub(crate) fn broker() -> (String, u16) {
    let url = url::Url::parse(&url()).unwrap();
    let host = url.host_str().unwrap().to_owned();
    (host, url.port().unwrap_or(5672))
}

/// The broker's URL by way of something that listens on this loopback address.
pub(crate) fn url_through(address: SocketAddr) -> String {
    let mut url = url::Url::parse(&url()).unwrap();
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_port(Some(address.port())).unwrap();
    url.to_string()
}

/// Runs `scripts/services` with arguments and expects success.
pub(crate) async fn services(arguments: &[&str]) {
    let mut command = Command::new(from_environment("ATTUNE_TEST_SERVICES"));
    command.args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = within("scripts/services", output).await.unwrap().unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Waits for something, within [`DEADLINE`].
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future)
        .await
        .unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// Connects, and hands out what the services see.
pub(crate) async fn connect(options: RabbitOptions) -> Arc<dyn Bus> {
    Arc::new(
        RabbitBus::connect(options)
            .await
            .expect("the broker can be reached"),
    )
}

/// A prefix for one test; dropping it deletes what has that prefix.
pub(crate) struct Prefix(String);

impl Prefix {
    pub(crate) fn new() -> Self {
        Self(format!("it-{}.", Uuid::now_v7().simple()))
    }

    pub(crate) fn options(&self) -> RabbitOptions {
        RabbitOptions {
            prefix: self.0.clone(),
            ..RabbitOptions::new(url())
        }
    }

    /// The broker's name of something.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }

    async fn delete_all(names: Vec<String>) -> lapin::Result<()> {
        let connection = Connection::connect(&url(), ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        for name in names {
            // Deleting what does not exist is fine.
            let (queue, exchange) = (name.as_str().into(), name.as_str().into());
            channel
                .queue_delete(queue, QueueDeleteOptions::default())
                .await?;
            channel
                .exchange_delete(exchange, ExchangeDeleteOptions::default())
                .await?;
        }
        connection.close(200, "done".into()).await
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        let mut names: Vec<String> = [
            "executions",
            "enforcements",
            "completed",
            "completed.kept",
            "queue-stats",
            "dead-letters",
            "cluster",
            "lives",
            "reports",
        ]
        .map(|name| self.name(&format!("attune.{name}")))
        .into();
        for partition in 0..16 {
            for kind in ["commands", "calls", "control"] {
                names.push(self.name(&format!("attune.partition.{partition:02}.{kind}")));
            }
        }
        // Best effort: a test that fails shall say its own reason.
        let deleting = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build();
            runtime.map(|runtime| {
                runtime.block_on(async { timeout(DEADLINE, Self::delete_all(names)).await })
            })
        });
        if let Ok(Ok(Ok(Err(error)))) = deleting.join() {
            eprintln!("queues of {} are left: {error}", self.0);
        }
    }
}

/// A virtual host of one test.
pub(crate) struct Vhost(pub(crate) String);

impl Vhost {
    pub(crate) async fn new() -> Self {
        let name = format!("it-{}", Uuid::now_v7().simple());
        services(&["vhost", "add", &name]).await;
        Self(name)
    }

    pub(crate) fn options(&self) -> RabbitOptions {
        RabbitOptions::new(url_of_vhost(&self.0))
    }

    pub(crate) async fn delete(self) {
        services(&["vhost", "delete", &self.0]).await;
    }
}

/// A client of its own, as somebody else would write it.
pub(crate) async fn stranger() -> (Connection, Channel) {
    let connection = Connection::connect(&url(), ConnectionProperties::default())
        .await
        .unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

pub(crate) async fn subscribe(bus: &dyn Bus, topic: Topic, prefetch: u16) -> Subscriber {
    let subscribing = bus.subscribe(Subscription { topic, prefetch });
    within("a subscription", subscribing).await.unwrap()
}

pub(crate) async fn receive(subscriber: &mut Subscriber) -> Delivery {
    within("a delivery", subscriber.next())
        .await
        .expect("the bus is open")
}

pub(crate) fn numbered(topic: Topic, number: u64) -> Outgoing {
    Outgoing::new(topic, Uuid::now_v7(), number.to_string())
}

pub(crate) fn number(delivery: &Delivery) -> u64 {
    std::str::from_utf8(&delivery.body)
        .unwrap()
        .parse()
        .unwrap()
}

/// Publishes again, under the same ids, until it is confirmed; what a service does.
pub(crate) async fn publish_until_confirmed(bus: &dyn Bus, mut messages: Vec<Outgoing>) -> u32 {
    let mut again = 0;
    let started = Instant::now();
    loop {
        match within("an answer", bus.publish(messages.clone())).await {
            Ok(()) => return again,
            Err(PublishError::Unconfirmed(_)) => {}
            Err(error @ PublishError::Refused(_)) => {
                messages.retain(|message| error.refusal_of(message.message_id).is_some());
            }
            Err(PublishError::Closed) => panic!("the bus is open"),
        }
        assert!(started.elapsed() < DEADLINE, "not confirmed in time");
        again += 1;
    }
}

/// Waits until the bus says that it is well, or that it is not.
pub(crate) async fn until_check(bus: &dyn Bus, well: bool) -> Option<String> {
    let mut look = tokio::time::interval(Duration::from_millis(5));
    within("a change of the bus's state", async {
        loop {
            look.tick().await;
            let state = bus.check().await;
            if state.is_ok() == well {
                return state.err().map(|error| error.to_string());
            }
        }
    })
    .await
}

/// Waits until the bus reaches the broker. One that counts as cut off does so for longer than this
/// waits.
pub(crate) async fn until_reached(bus: &dyn Bus) {
    let mut look = tokio::time::interval(Duration::from_millis(5));
    within("a way to the broker", async {
        while bus.reach().is_err() {
            look.tick().await;
        }
    })
    .await;
}

/// What a [`Proxy`] does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    /// It passes nothing on, in either direction, and closes nothing: a half-open connection.
    Frozen,
    /// It has closed what there was, towards both, and closes what comes.
    Cut,
}

/// Stands between a client and the broker.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    way: watch::Sender<Way>,
    _accepting: AbortOnDropHandle<()>,
}

impl Proxy {
    pub(crate) async fn new() -> Self {
        let broker = broker();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (way, state) = watch::channel(Way::Open);
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, broker.clone(), state.clone()));
            }
        });
        Self {
            address,
            way,
            _accepting: AbortOnDropHandle::new(accepting),
        }
    }

    /// The broker's URL by way of the proxy.
    pub(crate) fn url(&self) -> String {
        url_through(self.address)
    }

    pub(crate) fn freeze(&self, frozen: bool) {
        let way = if frozen { Way::Frozen } else { Way::Open };
        self.way.send_replace(way);
    }

    pub(crate) fn cut(&self, cut: bool) {
        let way = if cut { Way::Cut } else { Way::Open };
        self.way.send_replace(way);
    }
}

/// One connection. Once frozen it stays so until it is cut; one made while the proxy is frozen gets
/// no answer.
async fn pass(mut client: TcpStream, broker: (String, u16), mut state: watch::Receiver<Way>) {
    let way = *state.borrow_and_update();
    let mut server = None;
    if way == Way::Open {
        let server = server.insert(TcpStream::connect(broker).await.unwrap());
        tokio::select! {
            _ = copy_bidirectional(&mut client, server) => return,
            _ = state.wait_for(|way| *way != Way::Open) => {}
        }
    }
    state.wait_for(|way| *way == Way::Cut).await.ok();
}
