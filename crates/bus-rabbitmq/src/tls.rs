//! Certificates for TLS, read and judged before anything is connected.

use std::path::{Path, PathBuf};

use attune_bus::BusError;
use attune_runtime::{read_certificates, read_private_key};
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};

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
    /// read, holds no PEM of its kind, or is a key that other accounts may use.
    pub(crate) fn read(&self) -> Result<OwnedTLSConfig, BusError> {
        let ca = self.ca.as_deref();
        let ca = ca.map(|path| {
            let setting = "broker.tls.ca_file";
            let text = certificates(setting, path)?;
            let text = String::from_utf8(text);
            text.map_err(|_| refused(setting, path, "it is no text, so it is no PEM"))
        });
        let identity = match (&self.cert, &self.key) {
            (None, None) => None,
            (Some(cert), Some(key)) => {
                let unfit = |why: String| refused("broker.tls.key_file", key, &why);
                Some(OwnedIdentity::PKCS8 {
                    pem: certificates("broker.tls.cert_file", cert)?,
                    key: read_private_key(key).map_err(unfit)?.0,
                })
            }
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

/// The text of a file of certificates.
fn certificates(setting: &str, path: &Path) -> Result<Vec<u8>, BusError> {
    let read = read_certificates(path);
    read.map(|(text, _)| text)
        .map_err(|why| refused(setting, path, &why))
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
        let open = write("open.pem", key, 0o644);
        let of_group = write("group.pem", key, 0o640);
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
            (both(&cert, &open), "key_file", "mode 644"),
            (both(&cert, &cert), "key_file", "other accounts may read"),
            (both(&cert, &empty), "key_file", "no private key"),
            (both(&cert, &missing), "key_file", "No such file"),
            (both(&cert, &None), "key_file", "go together"),
        ] {
            let said = said(&files);
            let named = format!("broker.tls.{setting}");
            assert!(said.contains(&named) && said.contains(why), "{said}");
        }
        for key in [own, of_group] {
            assert!(both(&cert, &key).read().unwrap().identity.is_some());
        }
        assert_eq!(
            TlsFiles::default().read().unwrap(),
            OwnedTLSConfig::default()
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
