//! TLS with the broker itself: a listener of its own is opened on it for the test, with a certificate of an authority
//! that only the test knows.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use attune_bus::{Bus as _, BusError, Topic};
use attune_bus_rabbitmq::{RabbitBus, RabbitOptions, TlsFiles};
use attune_core::PartitionId;

use crate::support::{Vhost, number, numbered, receive, services, subscribe, url, within};

/// Runs openssl in a folder and expects success.
fn openssl(folder: &Path, arguments: &str) {
    let mut command = Command::new("openssl");
    command.args(arguments.split(' ')).current_dir(folder);
    let output = command.output().expect("openssl is there");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "openssl {arguments}: {said}");
}

/// An authority, and what it says of 127.0.0.1 and of a client.
fn certificates(folder: &Path) {
    std::fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1").unwrap();
    let new = "-newkey rsa:2048 -nodes -days 2";
    openssl(
        folder,
        &format!("req -x509 {new} -subj /CN=attune-it -keyout ca.key -out ca.pem"),
    );
    for name in ["broker", "client"] {
        openssl(
            folder,
            &format!("req {new} -subj /CN={name} -keyout {name}.key -out {name}.csr"),
        );
        let by = "-CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names";
        openssl(
            folder,
            &format!("x509 -req -in {name}.csr {by} -out {name}.pem"),
        );
    }
}

/// A listener for TLS on the broker, until it is closed.
struct Listener {
    folder: PathBuf,
    port: u16,
}

impl Listener {
    /// Opens one that asks who connects, and takes nobody whom the authority does not know.
    async fn open() -> Self {
        let folder = std::env::temp_dir().join(format!("attune-tls-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&folder).unwrap();
        certificates(&folder);
        // The broker is another user.
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        let key = folder.join("broker.key");
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        // Above 32768 the kernel gives ports away to whoever connects to somewhere.
        let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let first = 21_000 + u16::try_from(std::process::id() % 10_000).unwrap();
        let port = (first..32_000).find(free).expect("a port is free");
        let at = folder.display();
        let open = format!(
            "ok = rabbit_networking:start_ssl_listener({{\"127.0.0.1\", {port}, inet}}, [\
             {{cacertfile, \"{at}/ca.pem\"}}, {{certfile, \"{at}/broker.pem\"}}, \
             {{keyfile, \"{at}/broker.key\"}}, {{verify, verify_peer}}, \
             {{fail_if_no_peer_cert, true}}], 2)."
        );
        services(&["rabbitmqctl", "eval", &open]).await;
        Self { folder, port }
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.join(name))
    }

    fn options(&self, vhost: &Vhost, tls: TlsFiles) -> RabbitOptions {
        let mut url = url::Url::parse(&url()).unwrap();
        let secure = url.as_str().replacen("amqp://", "amqps://", 1);
        url = url::Url::parse(&secure).unwrap();
        url.set_host(Some("127.0.0.1")).unwrap();
        url.set_port(Some(self.port)).unwrap();
        url.set_path(&vhost.0);
        let mut options = RabbitOptions::new(url.to_string());
        options.tls = tls;
        options
    }

    async fn close(self) {
        let port = self.port;
        let close =
            format!("rabbit_networking:stop_tcp_listener({{\"127.0.0.1\", {port}, inet}}).");
        services(&["rabbitmqctl", "eval", &close]).await;
        std::fs::remove_dir_all(&self.folder).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_the_broker_is_and_who_connects_is_proven() {
    // As the program does first: two providers in one process would make every connection panic.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    let vhost = Vhost::new().await;
    let listener = Listener::open().await;
    let all = TlsFiles {
        ca: listener.file("ca.pem"),
        cert: listener.file("client.pem"),
        key: listener.file("client.key"),
    };
    let bus = RabbitBus::connect(listener.options(&vhost, all.clone()));
    let bus = within("a connection", bus).await.expect("both are proven");
    let topic = Topic::Commands(PartitionId(0));
    let mut subscriber = subscribe(&bus, topic.clone(), 4).await;
    let sent = within("a confirm", bus.publish(vec![numbered(topic, 7)])).await;
    sent.expect("it is kept");
    assert_eq!(number(&receive(&mut subscriber).await), 7);
    drop(subscriber);
    bus.close().await;

    let refused = async |tls: TlsFiles| {
        let mut options = listener.options(&vhost, tls);
        options.connect_timeout = std::time::Duration::from_secs(3);
        let connected = within("an answer", RabbitBus::connect(options)).await;
        match connected {
            Err(BusError::Unavailable(why) | BusError::Refused(why)) => why,
            Err(BusError::Closed) => panic!("it was not closed"),
            Ok(_) => panic!("it connects"),
        }
    };
    // Nobody vouches for the broker.
    let unknown = TlsFiles {
        ca: None,
        ..all.clone()
    };
    let why = refused(unknown).await;
    assert!(
        why.to_lowercase().contains("certificate") || why.contains("UnknownIssuer"),
        "{why}"
    );
    // The broker asks who connects.
    let nobody = TlsFiles {
        ca: all.ca.clone(),
        ..TlsFiles::default()
    };
    refused(nobody).await;
    let missing = TlsFiles {
        ca: listener.file("missing.pem"),
        ..all.clone()
    };
    let why = refused(missing).await;
    assert!(
        why.contains("broker.tls.ca_file") && why.contains("missing.pem"),
        "{why}"
    );
    listener.close().await;
    vhost.delete().await;
}
