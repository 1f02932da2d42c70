//! TLS of a listener, with real sessions.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use attune_runtime::Metrics;
use attune_runtime::http::{Beyond, Bounds, Door, Served, Tls, TlsFiles};
use axum::Router;
use axum::routing::get;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{interval, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::certificates::{Authority, Certified, replace};

const LONG: Duration = Duration::from_secs(30);
const NAME: &str = "attune.test";
const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: attune.test\r\nconnection: close\r\n\r\n";

fn bounds() -> Bounds {
    Bounds {
        served: Served::Everybody,
        max_connections: 64,
        beyond: Beyond::Wait,
        max_per_peer: 32,
        head_timeout: LONG,
        write_timeout: LONG,
        one_request_within: None,
    }
}

fn files(folder: &Path, certified: &Certified) -> TlsFiles {
    let (cert, key) = certified.write(folder);
    TlsFiles {
        section: "api.tls",
        cert,
        key,
        client_ca: None,
    }
}

/// Serves on a free port until the test is over.
async fn serve(tls: &Arc<Tls>, bounds: Bounds) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let router = Router::new().route("/", get(async || "served"));
    let door = Door::new(listener, router, bounds).with_tls(Some(Arc::clone(tls)));
    let address = door.local_addr().unwrap();
    tokio::spawn(async move {
        let (connections, stop) = (TaskTracker::new(), CancellationToken::new());
        door.serve(&connections, &stop).await;
    });
    address
}

/// A server with a certificate for [`NAME`], and what signed it.
async fn started(bounds: Bounds) -> (SocketAddr, Authority, tempfile::TempDir) {
    let (authority, folder) = (Authority::new("good"), tempfile::tempdir().unwrap());
    let tls = Tls::load(files(folder.path(), &authority.server(&[NAME]))).unwrap();
    (serve(&Arc::new(tls), bounds).await, authority, folder)
}

/// A client that trusts one authority.
struct Client {
    versions: Vec<&'static SupportedProtocolVersion>,
    roots: RootCertStore,
    own: Option<Certified>,
}

impl Client {
    fn of(authority: &Authority) -> Self {
        let mut roots = RootCertStore::empty();
        let pem = authority.pem.as_bytes();
        roots
            .add(CertificateDer::from_pem_slice(pem).unwrap())
            .unwrap();
        Self {
            versions: rustls::ALL_VERSIONS.to_vec(),
            roots,
            own: None,
        }
    }

    async fn connect(&self, server: SocketAddr, name: &str) -> io::Result<TlsStream<TcpStream>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&self.versions)
            .unwrap()
            .with_root_certificates(self.roots.clone());
        let mut config = match &self.own {
            None => config.with_no_client_auth(),
            Some(own) => {
                let cert = CertificateDer::from_pem_slice(own.cert.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![cert], key).unwrap()
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let stream = TcpStream::connect(server).await?;
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        timeout(LONG, connecting).await?
    }

    /// What one request is answered.
    async fn ask(&self, server: SocketAddr) -> io::Result<String> {
        talk(self.connect(server, NAME).await?).await
    }
}

async fn talk(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<String> {
    stream.write_all(GET).await?;
    let mut answer = String::new();
    timeout(LONG, stream.read_to_string(&mut answer)).await??;
    Ok(answer)
}

fn is_served(answer: &io::Result<String>) -> bool {
    let served = |answer: &String| answer.starts_with("HTTP/1.1 200") && answer.ends_with("served");
    answer.as_ref().is_ok_and(served)
}

#[tokio::test]
async fn both_versions_are_spoken_and_http_1_is_agreed_on() {
    let (server, authority, _folder) = started(bounds()).await;
    let mut client = Client::of(&authority);
    for (version, expected) in [
        (&rustls::version::TLS12, ProtocolVersion::TLSv1_2),
        (&rustls::version::TLS13, ProtocolVersion::TLSv1_3),
    ] {
        client.versions = vec![version];
        let stream = client.connect(server, NAME).await.unwrap();
        let (_, session) = stream.get_ref();
        assert_eq!(session.protocol_version(), Some(expected));
        assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]));
        // The whole answer, and an end that says that it is one.
        assert!(is_served(&talk(stream).await));
    }
}

#[tokio::test]
async fn a_client_notices_who_it_does_not_want() {
    let (server, authority, folder) = started(bounds()).await;
    let refused = async |client: &Client, server: SocketAddr, name: &str| {
        let error = client.connect(server, name).await.unwrap_err();
        error.to_string()
    };
    let good = Client::of(&authority);
    let said = refused(&good, server, "other.test").await;
    assert!(said.contains("not valid for name"), "{said}");
    let stranger = Client::of(&Authority::new("bad"));
    let said = refused(&stranger, server, NAME).await;
    assert!(said.contains("invalid peer certificate"), "{said}");

    // Served all the same, since who connects decides, and shown as over.
    let expired = files(folder.path(), &authority.expired_server(&[NAME]));
    let file = expired.cert.display().to_string();
    let tls = Arc::new(Tls::load(expired).unwrap());
    let said = refused(&good, serve(&tls, bounds()).await, NAME).await;
    assert!(said.contains("certificate expired"), "{said}");
    let metrics = Metrics::new();
    tls.export(&metrics.meter("tls"));
    let shown = metrics.render();
    let line = format!("tls_certificate_expiry_seconds{{file=\"{file}\"}} -");
    assert!(shown.contains(&line), "{shown}");
}

/// Where an authority of clients is set, a key alone is not enough.
#[tokio::test]
async fn a_client_without_a_certificate_is_not_served_where_one_is_asked_for() {
    let (authority, folder) = (Authority::new("good"), tempfile::tempdir().unwrap());
    let clients = Authority::new("clients");
    let mut files = files(folder.path(), &authority.server(&[NAME]));
    let client_ca = folder.path().join("clients.pem");
    std::fs::write(&client_ca, &clients.pem).unwrap();
    files.client_ca = Some(client_ca);
    let server = serve(&Arc::new(Tls::load(files).unwrap()), bounds()).await;
    for (own, expected) in [
        (None, false),
        (Some(Authority::new("others").client()), false),
        // A server is no client.
        (Some(clients.server(&[NAME])), false),
        (Some(clients.client()), true),
    ] {
        for version in rustls::ALL_VERSIONS {
            let mut client = Client::of(&authority);
            client.versions = vec![version];
            let own = own.as_ref();
            client.own = own.map(|Certified { cert, key }| Certified {
                cert: cert.clone(),
                key: key.clone(),
            });
            let answer = client.ask(server).await;
            assert_eq!(is_served(&answer), expected, "{version:?}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn plain_http_is_told_to_speak_tls() {
    let (server, ..) = started(bounds()).await;
    let answer = talk(TcpStream::connect(server).await.unwrap())
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert!(
        answer.contains("TLS_REQUIRED") && answer.contains("https://"),
        "{answer}"
    );
}

/// What a handshake has not ended keeps nobody out: not those of other addresses, and not for ever.
#[tokio::test]
async fn silent_connections_keep_nobody_else_out() {
    let mut bounds = bounds();
    bounds.head_timeout = Duration::from_secs(2);
    let (server, authority, _folder) = started(bounds).await;
    let mut silent = Vec::new();
    for count in 0..1000 {
        let mut stream = TcpStream::connect(server).await.unwrap();
        // Half of them have begun.
        if count % 2 == 0 {
            drop(stream.write_all(&[22, 3, 1]).await);
        }
        silent.push(stream);
    }
    let other = TcpSocket::new_v4().unwrap();
    other.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let stream = other.connect(server).await.unwrap();
    let client = Client::of(&authority);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(client.roots.clone())
        .with_no_client_auth();
    let name = ServerName::try_from(NAME).unwrap();
    let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
    let answer = talk(timeout(LONG, connecting).await.unwrap().unwrap()).await;
    assert!(is_served(&answer), "{answer:?}");
    // The first of them are cut when they have had their time, so that their address is served again.
    let mut ended = Vec::new();
    timeout(LONG, silent[1].read_to_end(&mut ended))
        .await
        .unwrap()
        .unwrap();
    let served = async {
        while !is_served(&client.ask(server).await) {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, served).await.unwrap();
}

/// Follows the files of `tls` as a daemon does, only sooner.
fn follow(tls: &Arc<Tls>, every: Duration) {
    let hangup = signal(SignalKind::hangup()).unwrap();
    tokio::spawn(Arc::clone(tls).follow(every, hangup, CancellationToken::new()));
}

/// Waits until the server is one that `client` wants.
async fn until_served(client: &Client, server: SocketAddr) {
    let mut tries = interval(Duration::from_millis(10));
    let served = async {
        while !is_served(&client.ask(server).await) {
            tries.tick().await;
        }
    };
    timeout(LONG, served).await.unwrap();
}

#[tokio::test]
async fn a_new_certificate_is_taken_under_load_without_a_failed_request() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let folder = tempfile::tempdir().unwrap();
    let tls = Arc::new(Tls::load(files(folder.path(), &old.server(&[NAME]))).unwrap());
    let server = serve(&tls, bounds()).await;
    follow(&tls, Duration::from_millis(20));

    // Clients that trust both; each request has a connection of its own.
    let mut both = Client::of(&old);
    both.roots.roots.extend(Client::of(&new).roots.roots);
    let (both, asked) = (Arc::new(both), Arc::new(AtomicUsize::new(0)));
    let stop = CancellationToken::new();
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (both, asked, stop) = (Arc::clone(&both), Arc::clone(&asked), stop.clone());
            tokio::spawn(async move {
                while !stop.is_cancelled() {
                    let answer = both.ask(server).await;
                    assert!(is_served(&answer), "{answer:?}");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for round in 0..5 {
        let next = if round % 2 == 0 { &new } else { &old };
        next.server(&[NAME]).write(folder.path());
        until_served(&Client::of(next), server).await;
    }
    let so_far = asked.load(Ordering::Relaxed);
    assert!(so_far > 0, "nothing was asked meanwhile");
    stop.cancel();
    for one in load {
        timeout(LONG, one).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_certificate_that_cannot_be_used_leaves_the_old_one_in_force() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let folder = tempfile::tempdir().unwrap();
    let tls = Arc::new(Tls::load(files(folder.path(), &old.server(&[NAME]))).unwrap());
    let server = serve(&tls, bounds()).await;
    // So seldom that nothing but the signal has it look.
    follow(&tls, Duration::from_secs(3600));
    until_served(&Client::of(&old), server).await;
    let hang_up = || {
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::HUP).unwrap();
    };
    let next = new.server(&[NAME]);
    for bad in ["", "-----BEGIN CERTIFICATE-----\n", next.cert.as_str()] {
        replace(&folder.path().join("api.pem"), bad, 0o644);
        hang_up();
        tls.read_again(false).unwrap_err();
        assert!(is_served(&Client::of(&old).ask(server).await), "{bad}");
    }
    next.write(folder.path());
    hang_up();
    until_served(&Client::of(&new), server).await;
    assert!(Client::of(&old).ask(server).await.is_err());
    assert!(!tls.read_again(false).unwrap(), "nothing has changed since");
}

#[test]
fn files_that_cannot_be_used_are_told_with_setting_file_and_way_out() {
    let (authority, folder) = (Authority::new("good"), tempfile::tempdir().unwrap());
    let good = authority.server(&[NAME]);
    let write = |name: &str, text: &str, mode: u32| {
        let path = folder.path().join(name);
        replace(&path, text, mode);
        path
    };
    let (cert, key) = (
        write("cert", &good.cert, 0o644),
        write("key", &good.key, 0o600),
    );
    let cut: String = good.key.lines().take(2).collect::<Vec<_>>().join("\n");
    let encrypted = good.key.replace("PRIVATE", "ENCRYPTED PRIVATE");
    let other = authority.server(&[NAME]);
    for (cert, key, client_ca, words) in [
        (
            Path::new("/nowhere/cert"),
            key.as_path(),
            None,
            "api.tls.cert_file: /nowhere/cert: No such file",
        ),
        (
            &cert,
            Path::new("/nowhere/key"),
            None,
            "api.tls.key_file: /nowhere/key: No such file",
        ),
        (folder.path(), &key, None, "it is no regular file"),
        (
            &key,
            &key,
            None,
            "there is no certificate in it: it must begin with -----BEGIN",
        ),
        (
            &write("empty", "", 0o644),
            &key,
            None,
            "there is no certificate in it",
        ),
        (
            &write("der", "\u{1}\u{2}", 0o644),
            &key,
            None,
            "there is no certificate in it",
        ),
        (
            &write("cut", "-----BEGIN CERTIFICATE-----\nAAAA\n", 0o644),
            &key,
            None,
            "a line that begins with -----END is missing",
        ),
        (
            &write("junk", &good.cert.replace('M', "!"), 0o644),
            &key,
            None,
            "api.tls.cert_file",
        ),
        (
            &cert,
            &write("none", &good.cert, 0o600),
            None,
            "there is no private key in it",
        ),
        (
            &cert,
            &write("half", &cut, 0o600),
            None,
            "-----END is missing",
        ),
        (
            &cert,
            &write("locked", &encrypted, 0o600),
            None,
            "the key is encrypted",
        ),
        (
            &cert,
            &write("other", &other.key, 0o600),
            None,
            "it is not the key of the first certificate in",
        ),
        (
            &cert,
            &write("open", &good.key, 0o644),
            None,
            "other accounts may read or change it (mode 644)",
        ),
        (
            &cert,
            &key,
            Some(folder.path().join("empty")),
            "api.tls.client_ca_file",
        ),
    ] {
        let files = TlsFiles {
            section: "api.tls",
            cert: cert.to_owned(),
            key: key.to_owned(),
            client_ca,
        };
        let said = Tls::load(files).unwrap_err().to_string();
        assert!(said.contains(words), "{said}");
        assert!(!said.contains("PRIVATE KEY-----\nM"), "{said}");
    }
    let shared = write("shared", &good.key, 0o640);
    let files = TlsFiles {
        section: "api.tls",
        cert,
        key: shared,
        client_ca: None,
    };
    Tls::load(files).unwrap();
}
