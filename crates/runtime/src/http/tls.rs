//! TLS of a listener: what it proves by who it is, read again when it changes.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::KeyValue;
use opentelemetry::metrics::Meter;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::signal::unix::Signal;
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::error_text::error_chain;
use crate::pem::{read_certificates, read_private_key};

/// A certificate that is good for less than this is warned of whenever it is read.
const SOON: i64 = 14 * 24 * 3600;
/// With this begins what a client says that speaks TLS: a record of the handshake.
const HANDSHAKE: u8 = 22;

/// The files of a listener's TLS, all of them PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The section of the settings that names them, such as `api.tls`.
    pub section: &'static str,
    /// The certificate, and those between it and its authority.
    pub cert: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
    /// Authorities one of which must have signed the certificate of a client; `None`: clients need none.
    pub client_ca: Option<PathBuf>,
}

/// A file that cannot be used, with the setting that names it.
#[derive(Debug, thiserror::Error)]
#[error("{setting}: {}: {problem}", file.display())]
pub struct TlsError {
    setting: String,
    file: PathBuf,
    problem: String,
}

/// The TLS of a listener, by what is in its files now.
pub struct Tls {
    files: TlsFiles,
    /// Held for single statements, never across an await.
    current: RwLock<Read>,
}

/// What was in the files.
#[derive(Clone)]
struct Read {
    config: Arc<ServerConfig>,
    /// When the first certificate of a file is over, in seconds since 1970.
    expiries: Vec<(PathBuf, i64)>,
    marks: Vec<Option<Mark>>,
}

/// By what one sees without reading it that a file is another one: device, number, time and size.
type Mark = (u64, u64, (i64, i64), u64);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.files).finish()
    }
}

/// What a client that has connected speaks.
pub(super) enum Greeting {
    /// TLS, and the two have agreed.
    Agreed(Box<TlsStream<TcpStream>>),
    /// Something else, most likely plain HTTP; nothing was read of it.
    Plain(TcpStream),
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] for the first that cannot be used: it cannot be read, there is nothing of its kind in it, the
    /// key is not that of the certificate, or other accounts may read the key.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let current = RwLock::new(files.read()?);
        Ok(Self { files, current })
    }

    /// Reads the files again whenever they have changed since `every` before, and whenever `hangup` comes, until
    /// `stop`. What cannot be used is logged each time, and what was read before stays in force.
    pub async fn follow(
        self: Arc<Self>,
        every: Duration,
        mut hangup: Signal,
        stop: CancellationToken,
    ) {
        let mut looks = interval(every);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_asked = tokio::select! {
                () = stop.cancelled() => return,
                Some(()) = hangup.recv() => true,
                _ = looks.tick() => false,
            };
            let tls = Arc::clone(&self);
            // A file system may hang; this task alone waits for it.
            let looked = tokio::task::spawn_blocking(move || tls.read_again(is_asked)).await;
            match looked {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => info!(
                    tls.section = self.files.section,
                    "certificates were read again"
                ),
                Ok(Err(error)) => warn!(
                    error.message = %error,
                    "certificates cannot be used; those that were read before stay in force"
                ),
                Err(error) => warn!(
                    error.message = error_chain(&error),
                    "certificates were not read"
                ),
            }
        }
    }

    /// Reads the files again if they have changed, or `anyway`; says whether it has. Connections that there are
    /// go on as they are.
    ///
    /// # Errors
    /// As [`load`](Self::load); what was read before stays in force.
    pub fn read_again(&self, anyway: bool) -> Result<bool, TlsError> {
        if !anyway && self.current(|read| read.marks == self.files.marks()) {
            return Ok(false);
        }
        let read = self.files.read()?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(true)
    }

    /// For how many seconds the first certificate of each file is good: below 0 when it is not any more.
    #[must_use]
    pub fn expiries(&self) -> Vec<(PathBuf, i64)> {
        let now = now();
        let left = |(file, until): &(PathBuf, i64)| (file.clone(), until - now);
        self.current(|read| read.expiries.iter().map(left).collect())
    }

    /// Shows for how many seconds the certificates are good: below 0 when they are not any more.
    pub fn export(self: &Arc<Self>, meter: &Meter) {
        let tls = Arc::clone(self);
        meter
            .i64_observable_gauge("tls.certificate_expiry_seconds")
            .with_description("Seconds until the first certificate of the file is over.")
            .with_callback(move |observer| {
                for (file, left) in tls.expiries() {
                    let file = KeyValue::new("file", file.display().to_string());
                    observer.observe(left, &[file]);
                }
            })
            .build();
    }

    /// Agrees with a client on keys. Ends with an error when the client has none of what it must have, or hangs
    /// up; how long it takes whoever calls must bound.
    pub(super) async fn greet(&self, stream: TcpStream) -> io::Result<Greeting> {
        let mut first = [0];
        if stream.peek(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if first != [HANDSHAKE] {
            return Ok(Greeting::Plain(stream));
        }
        let config = self.current(|read| Arc::clone(&read.config));
        let agreed = TlsAcceptor::from(config).accept(stream).await?;
        Ok(Greeting::Agreed(Box::new(agreed)))
    }

    fn current<T>(&self, of: impl FnOnce(&Read) -> T) -> T {
        of(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// For how many seconds the first certificate of a file is good, which `setting` names (`broker.tls.ca_file`): below
/// 0 when it is not any more.
///
/// # Errors
/// [`TlsError`] when it cannot be read, or there is no certificate in it.
pub fn certificate_left(setting: (&'static str, &str), file: &Path) -> Result<i64, TlsError> {
    let (section, key) = setting;
    let files = TlsFiles {
        section,
        cert: file.to_owned(),
        key: PathBuf::new(),
        client_ca: None,
    };
    let chain = files.certificates(key, file)?;
    Ok(files.expiry(key, file, &chain)? - now())
}

impl TlsFiles {
    /// The setting that names a file, as the start of a message.
    fn error(&self, key: &str, file: &Path, problem: impl Into<String>) -> TlsError {
        TlsError {
            setting: format!("{}.{key}", self.section),
            file: file.to_owned(),
            problem: problem.into(),
        }
    }

    fn marks(&self) -> Vec<Option<Mark>> {
        let files = [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()];
        let mark = |file: &PathBuf| {
            let seen = std::fs::metadata(file).ok()?;
            let time = (seen.mtime(), seen.mtime_nsec());
            Some((seen.dev(), seen.ino(), time, seen.size()))
        };
        files.into_iter().flatten().map(mark).collect()
    }

    fn read(&self) -> Result<Read, TlsError> {
        // Before what they are about: what changes in between is read again.
        let marks = self.marks();
        let chain = self.certificates("cert_file", &self.cert)?;
        let key = self.key()?;
        let mut expiries = vec![(
            self.cert.clone(),
            self.expiry("cert_file", &self.cert, &chain)?,
        )];

        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| self.error("cert_file", &self.cert, error.to_string()))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let unfit = |problem: String| self.error("client_ca_file", file, problem);
                let authorities = self.certificates("client_ca_file", file)?;
                expiries.push((
                    file.clone(),
                    self.expiry("client_ca_file", file, &authorities)?,
                ));
                let mut roots = RootCertStore::empty();
                for authority in authorities {
                    roots
                        .add(authority)
                        .map_err(|error| unfit(error.to_string()))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder
                    .with_client_cert_verifier(verifier.map_err(|error| unfit(error.to_string()))?)
            }
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => self.error(
                    "key_file",
                    &self.key,
                    format!(
                        "it is not the key of the first certificate in {}",
                        self.cert.display()
                    ),
                ),
                rustls::Error::InvalidCertificate(_) => {
                    self.error("cert_file", &self.cert, error.to_string())
                }
                _ => self.error("key_file", &self.key, error.to_string()),
            })?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Read {
            config: Arc::new(config),
            expiries,
            marks,
        })
    }

    /// The certificates in a file, at least one.
    fn certificates(
        &self,
        key: &str,
        file: &Path,
    ) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let found = read_certificates(file).map_err(|problem| self.error(key, file, problem))?;
        Ok(found.1)
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let unfit = |problem: String| self.error("key_file", &self.key, problem);
        let (_, key) = read_private_key(&self.key).map_err(unfit)?;
        Ok(key)
    }

    /// When the first of these certificates is over, in seconds since 1970.
    fn expiry(
        &self,
        key: &str,
        file: &Path,
        certificates: &[CertificateDer<'_>],
    ) -> Result<i64, TlsError> {
        let until = |certificate: &CertificateDer<'_>| {
            x509_parser::parse_x509_certificate(certificate)
                .map(|(_, read)| read.validity().not_after.timestamp())
                .map_err(|error| {
                    self.error(
                        key,
                        file,
                        format!("a certificate in it cannot be read: {error}"),
                    )
                })
        };
        let until: Result<Vec<i64>, TlsError> = certificates.iter().map(until).collect();
        let first = until?.into_iter().min().unwrap_or(i64::MAX);
        let left = first - now();
        if left < SOON {
            warn!(
                tls.file = %file.display(),
                tls.days_left = left.div_euclid(24 * 3600),
                "a certificate is over soon, or already: who checks it will not connect then"
            );
        }
        Ok(first)
    }
}

/// Seconds since 1970, by the clock that certificates go by.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs().cast_signed())
}
