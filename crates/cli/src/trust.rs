//! Whom a client believes, and what it proves by who it is itself.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use clap::Args;
use reqwest::{Certificate, ClientBuilder, Identity};
use rustls::CertificateError;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::private::{read_private, read_whole};

/// How large a file may be, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Whom a client believes where the server speaks TLS.
#[derive(Debug, Clone, Default, Args)]
pub struct Trust {
    /// For https: believe the authorities in this file (PEM), and not those of the system.
    #[arg(long, global = true, env = "ATTUNE_CA_FILE", value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// For a server that asks for one: a certificate and its key (PEM, both in this file).
    #[arg(
        long,
        global = true,
        env = "ATTUNE_CLIENT_CERT_FILE",
        value_name = "FILE"
    )]
    client_cert_file: Option<PathBuf>,
}

impl Trust {
    /// Has a client go by this.
    ///
    /// # Errors
    /// In words for people, with the option and the file: it cannot be used.
    pub fn apply(&self, mut builder: ClientBuilder) -> Result<ClientBuilder, String> {
        if let Some(file) = &self.ca_file {
            let unfit = |problem: &str| format!("--ca-file {}: {problem}", file.display());
            let read = read_whole(file, MAX_FILE_BYTES);
            let (text, _) = read.map_err(|error| unfit(&error))?;
            let found = Certificate::from_pem_bundle(&text);
            let found = found.map_err(|_| unfit("it is not PEM"))?;
            if found.is_empty() {
                return Err(unfit(
                    "there is no certificate in it: it must begin with -----BEGIN CERTIFICATE-----",
                ));
            }
            builder = builder.tls_certs_only(found);
        }
        if let Some(file) = &self.client_cert_file {
            let unfit = |problem: &str| format!("--client-cert-file {}: {problem}", file.display());
            let text = read_private(file, MAX_FILE_BYTES).map_err(|error| unfit(&error))?;
            fits(&text).map_err(|error| unfit(&error))?;
            let identity = Identity::from_pem(&text)
                .map_err(|_| unfit("it must have a certificate and its key, both as PEM"))?;
            builder = builder.identity(identity);
        }
        Ok(builder)
    }
}

/// Looks whether a certificate and its key can be used together; the client that is built of them says no more than
/// that it cannot be built.
fn fits(text: &[u8]) -> Result<(), String> {
    let pem = |error: pem::Error| format!("it is no PEM: {error}");
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let chain = chain.map_err(pem)?;
    if chain.is_empty() {
        return Err("there is no certificate in it, beside the key".to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(text).map_err(|_| {
        "there is no private key in it that can be read: in PEM (PKCS #8, PKCS #1 or SEC 1), without a password"
            .to_owned()
    })?;
    let key = rustls::crypto::ring::sign::any_supported_type(&key)
        .map_err(|error| format!("its key cannot be used: {error}"))?;
    match CertifiedKey::new(chain, key).keys_match() {
        Ok(()) => Ok(()),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err("the key in it is not that of its first certificate".to_owned())
        }
        Err(error) => Err(format!(
            "its certificate cannot be used ({error}); it must be of version 3, as `openssl x509 -req -extfile` makes it"
        )),
    }
}

/// What TLS has against a server, and the way out; `None` when the error is another one.
pub(super) fn objection(error: &(dyn Error + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(in_words(found));
        }
        // What an I/O error stands for is no source of it, and may be another one.
        let inside = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        cause = match inside {
            Some(inside) => Some(inside),
            None => error.source(),
        };
    }
    None
}

fn in_words(error: &rustls::Error) -> String {
    let way_out = match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "no authority that is believed here has signed it; name the file with the right one by --ca-file \
             or ATTUNE_CA_FILE"
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "use one of its names in the URL",
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "the server needs a new one, or the clock here is ahead",
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "the clock here is behind, or that of whoever made it was ahead",
        rustls::Error::InvalidMessage(_) => "no TLS is spoken there: use http:// if that is right",
        rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired) => {
            "the server wants a certificate: --client-cert-file or ATTUNE_CLIENT_CERT_FILE"
        }
        _ => return error.to_string(),
    };
    format!("{error}: {way_out}")
}
