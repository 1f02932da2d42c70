//! What the broker does not let this user publish costs nobody else anything, and is noticed when it may go.

use std::time::Duration;

use attune_bus::{Bus as _, BusError, PublishError, Refusal, Topic};
use attune_bus_rabbitmq::{RabbitBus, RabbitOptions};
use attune_core::policy::EventKind;
use attune_testkit::Broker;
use serde_json::json;

use crate::support::{number, numbered, publish_until_confirmed, receive, subscribe, within};

const EVENT: Topic = Topic::Event(EventKind::Accepted);

/// A virtual host with a user of its own, and how that may publish.
struct Place {
    broker: Broker,
    user: String,
    url: String,
}

impl Place {
    async fn new(write: &str) -> Self {
        let broker = Broker::create().await.unwrap();
        let vhost = broker.url().rsplit_once('/').unwrap().1;
        let user = format!("user-{vhost}");
        let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
        let url = broker.account(&user, &all, &[]).await.unwrap();
        let place = Self { broker, user, url };
        place.may_publish(write).await;
        place
    }

    /// The keys by which the user may publish.
    async fn may_publish(&self, write: &str) {
        let keys = json!({"exchange": "attune.executions", "write": write, "read": ".*"});
        self.broker.may_publish(&self.user, &keys).await.unwrap();
    }

    fn options(&self) -> RabbitOptions {
        RabbitOptions {
            names_user: true,
            ..RabbitOptions::new(&*self.url)
        }
    }
}

fn words(error: &PublishError) -> String {
    match error {
        PublishError::Refused(refused) => match refused.as_slice() {
            [one] => match &one.why {
                Refusal::Forbidden(words) => words.clone(),
                why => panic!("{why}"),
            },
            several => panic!("{several:?}"),
        },
        other => panic!("{other}"),
    }
}

/// Everything else goes on, on the same connection, also what is published in the same breath; and when the
/// right is given, what was refused is taken without a new start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_the_user_may_not_publish_to() {
    let place = Place::new("^(?!event[.]).*$").await;
    let options = place.options();
    let reconnects = options.reconnects.clone();
    let bus = RabbitBus::connect(options).await.unwrap();
    let mut work = subscribe(&bus, Topic::Completed, 64).await;
    // Nothing else was on its way: it is this one, and the first answer says so.
    let alone = within("an answer", bus.publish(vec![numbered(EVENT, 0)])).await;
    let said = words(&alone.unwrap_err());
    for part in [
        "`event.accepted`",
        place.user.as_str(),
        "attune topology permissions",
        "ACCESS_REFUSED",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    // A new kind of event in one call with work.
    let other = Topic::Event(EventKind::Finished);
    let mixed = vec![numbered(other.clone(), 0), numbered(Topic::Completed, 1)];
    let (event, kept) = (mixed[0].message_id, mixed[1].message_id);
    let refused = within("the work of the call", async {
        loop {
            match bus.publish(mixed.clone()).await {
                Err(PublishError::Unconfirmed(_)) => {}
                answer => break answer.unwrap_err(),
            }
        }
    })
    .await;
    assert!(words(&refused).contains("`event.finished`"));
    assert!(refused.refusal_of(event).is_some() && refused.refusal_of(kept).is_none());
    assert_eq!(number(&receive(&mut work).await), 1);
    // From now on it costs nothing: every call of work is confirmed at once, whatever is refused meanwhile.
    for round in 2..40 {
        let (event, work) = tokio::join!(
            bus.publish(vec![numbered(EVENT, 0)]),
            bus.publish(vec![numbered(Topic::Completed, round)])
        );
        words(&event.unwrap_err());
        work.unwrap();
    }
    for round in 2..40 {
        let delivery = receive(&mut work).await;
        assert_eq!(number(&delivery), round);
        work.settler().ack(&[delivery.tag]).await;
    }
    // Nobody misses an event.
    bus.check().await.unwrap();

    place.may_publish(".*").await;
    let again = within("that it is taken", async {
        let mut tries = 0;
        let mut look = tokio::time::interval(Duration::from_millis(50));
        while let Err(error) = bus.publish(vec![numbered(EVENT, 0)]).await {
            words(&error);
            tries += 1;
            look.tick().await;
        }
        tries
    });
    assert!(again.await < 1_000);
    bus.publish(vec![numbered(other, 0)]).await.ok();
    assert_eq!(reconnects.get(), 0, "the connection is the first one");
    bus.close().await;
}

/// What somebody misses shows in the state of the bus, and is published when it may be, by who goes on trying.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_completion_that_may_not_be_published_is_shown_and_not_lost() {
    let place = Place::new("^(?!execution[.]completed$).*$").await;
    let options = place.options();
    let reconnects = options.reconnects.clone();
    let bus = RabbitBus::connect(options).await.unwrap();
    let mut work = subscribe(&bus, Topic::Completed, 4).await;
    let refused = bus.publish(vec![numbered(Topic::Completed, 1)]).await;
    let why = words(&refused.unwrap_err());
    bus.reach().unwrap();
    match bus.check().await {
        Err(BusError::Refused(shown)) => assert_eq!(shown, why),
        other => panic!("{other:?}"),
    }
    // Others of the same exchange are not held up.
    bus.publish(vec![numbered(EVENT, 0)]).await.unwrap();
    place.may_publish(".*").await;
    let mut look = tokio::time::interval(Duration::from_millis(50));
    within("that it is taken", async {
        let messages = vec![numbered(Topic::Completed, 2)];
        while publish_until_confirmed_once(&bus, &messages)
            .await
            .is_none()
        {
            look.tick().await;
        }
    })
    .await;
    assert_eq!(number(&receive(&mut work).await), 2);
    bus.check().await.unwrap();
    assert_eq!(reconnects.get(), 0, "the connection is the first one");
    publish_until_confirmed(&bus, vec![numbered(Topic::Completed, 3)]).await;
    assert_eq!(number(&receive(&mut work).await), 3);
    bus.close().await;
}

async fn publish_until_confirmed_once(
    bus: &RabbitBus,
    messages: &[attune_bus::Outgoing],
) -> Option<()> {
    bus.publish(messages.to_vec()).await.ok()
}

/// An exchange that somebody deletes is declared again with the next channel; the connection stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_that_is_gone_costs_a_channel() {
    let prefix = crate::support::Prefix::new();
    let options = prefix.options();
    let reconnects = options.reconnects.clone();
    let bus = RabbitBus::connect(options).await.unwrap();
    bus.publish(vec![numbered(EVENT, 0)]).await.unwrap();
    let (connection, channel) = crate::support::stranger().await;
    let name = prefix.name("attune.executions");
    let gone = channel.exchange_delete(name.as_str().into(), Default::default());
    gone.await.unwrap();
    connection.close(200, "done".into()).await.unwrap();
    match bus.publish(vec![numbered(EVENT, 0)]).await {
        Err(PublishError::Unconfirmed(why)) => assert!(why.contains("NOT_FOUND"), "{why}"),
        other => panic!("{other:?}"),
    }
    publish_until_confirmed(&bus, vec![numbered(EVENT, 0)]).await;
    assert_eq!(reconnects.get(), 0, "the connection is the first one");
    bus.close().await;
}
