//! Whom a client believes, and what it proves by who it is itself.

use std::error::Error;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use clap::Args;
use reqwest::{Certificate, ClientBuilder, Identity};
use rustls::CertificateError;

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
            let text = read(file).map_err(|error| unfit(&error))?;
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
            let text = read(file).map_err(|error| unfit(&error))?;
            let identity = Identity::from_pem(&text)
                .map_err(|_| unfit("it must have a certificate and its key, both as PEM"))?;
            builder = builder.identity(identity);
        }
        Ok(builder)
    }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    std::fs::File::open(file)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut text))
        .map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("it has more than {MAX_FILE_BYTES} bytes"));
    }
    Ok(text)
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
        rustls::Error::InvalidMessage(_) => "no TLS is spoken there: use http:// if that is right",
        rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired) => {
            "the server wants a certificate: --client-cert-file or ATTUNE_CLIENT_CERT_FILE"
        }
        _ => return error.to_string(),
    };
    format!("{error}: {way_out}")
}
