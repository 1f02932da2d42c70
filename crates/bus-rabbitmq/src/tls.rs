//! Certificates for TLS, read and judged before anything is connected.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use attune_bus::BusError;
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// How large such a file may be, in bytes: several times all certificates that systems trust.
const MAX_BYTES: u64 = 4 << 20;

/// Files of PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Who may vouch for the broker, beside those whom the system trusts.
    pub ca: Option<PathBuf>,
    /// Who this client is, with those who vouch for it.
    pub cert: Option<PathBuf>,
    /// The key of that.
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// [`BusError::Refused`] with the setting, the file, what is wrong with it and the way out: it cannot be
    /// read, holds no PEM of its kind, or is a key that others may read.
    pub(crate) fn read(&self) -> Result<OwnedTLSConfig, BusError> {
        let ca = self.ca.as_deref();
        let ca = ca.map(|path| certificates("broker.tls.ca_file", path));
        let identity = match (&self.cert, &self.key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some(OwnedIdentity::PKCS8 {
                pem: certificates("broker.tls.cert_file", cert)?.into_bytes(),
                key: private_key("broker.tls.key_file", key)?,
            }),
            _ => {
                let words =
                    "broker.tls.cert_file and broker.tls.key_file go together: set both or neither";
                return Err(BusError::Refused(words.to_owned()));
            }
        };
        Ok(OwnedTLSConfig {
            identity,
            cert_chain: ca.transpose()?,
        })
    }
}

fn refused(setting: &str, path: &Path, why: &str) -> BusError {
    BusError::Refused(format!("{setting} {}: {why}", path.display()))
}

/// The text of a file of certificates, at least one.
fn certificates(setting: &str, path: &Path) -> Result<String, BusError> {
    let refused = |why: &str| refused(setting, path, why);
    let (text, _) = read(path).map_err(|error| refused(&error.to_string()))?;
    let found: Result<Vec<CertificateDer<'_>>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Err(error) => Err(refused(&format!("it is no PEM: {error}"))),
        Ok(found) if found.is_empty() => Err(refused(
            "it holds no certificate: a file of PEM has lines -----BEGIN CERTIFICATE-----",
        )),
        Ok(_) => String::from_utf8(text).map_err(|_| refused("it is no text, so it is no PEM")),
    }
}

/// The text of a file with a key that nobody but its owner may read.
fn private_key(setting: &str, path: &Path) -> Result<Vec<u8>, BusError> {
    let refused = |why: &str| refused(setting, path, why);
    let (text, mode) = read(path).map_err(|error| refused(&error.to_string()))?;
    if mode & 0o077 != 0 {
        let mode = mode & 0o777;
        return Err(refused(&format!(
            "others than its owner may read it (mode {mode:o}): chmod 600"
        )));
    }
    // Its words quote nothing of the file.
    match PrivateKeyDer::from_pem_slice(&text) {
        Ok(_) => Ok(text),
        Err(_) => Err(refused(
            "it holds no private key in PEM (PKCS #8, PKCS #1 or SEC 1, without a password)",
        )),
    }
}

/// What is in a file, and who may read it.
fn read(path: &Path) -> io::Result<(Vec<u8>, u32)> {
    // Asked before it is opened: opening a pipe waits for who writes.
    if !std::fs::metadata(path)?.is_file() {
        let words = "it is no regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, words));
    }
    let file = File::open(path)?;
    let mode = file.metadata()?.mode();
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("it has more than {MAX_BYTES} bytes"),
        )),
        false => Ok((text, mode)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn said(files: &TlsFiles) -> String {
        match files.read() {
            Err(BusError::Refused(words)) => words,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_cannot_be_used_is_told_with_the_setting_and_the_file() {
        let folder = std::env::temp_dir().join(format!("attune-tls-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&folder).unwrap();
        let write = |name: &str, text: &str, mode: u32| {
            let path = folder.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            Some(path)
        };
        let empty = write("empty.pem", "", 0o600);
        let cert = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let (cert, own) = (write("cert.pem", cert, 0o644), write("key.pem", key, 0o600));
        let open = write("open.pem", key, 0o640);
        let missing = Some(folder.join("missing.pem"));
        let only = |ca: &Option<PathBuf>| TlsFiles {
            ca: ca.clone(),
            ..TlsFiles::default()
        };
        let both = |cert: &Option<PathBuf>, key: &Option<PathBuf>| TlsFiles {
            ca: None,
            cert: cert.clone(),
            key: key.clone(),
        };
        for (files, setting, why) in [
            (only(&missing), "ca_file", "No such file"),
            (only(&Some(folder.clone())), "ca_file", "regular file"),
            (only(&empty), "ca_file", "no certificate"),
            (only(&own), "ca_file", "no certificate"),
            (both(&cert, &open), "key_file", "mode 640"),
            (both(&cert, &cert), "key_file", "others than its owner"),
            (both(&cert, &empty), "key_file", "no private key"),
            (both(&cert, &missing), "key_file", "No such file"),
            (both(&cert, &None), "key_file", "go together"),
        ] {
            let said = said(&files);
            let named = format!("broker.tls.{setting}");
            assert!(said.contains(&named) && said.contains(why), "{said}");
        }
        assert!(both(&cert, &own).read().unwrap().identity.is_some());
        assert_eq!(
            TlsFiles::default().read().unwrap(),
            OwnedTLSConfig::default()
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
