//! Files of certificates and keys, read and judged in one way, whoever names them.

use std::path::Path;

use attune_config::{read_file_bytes, read_private_bytes};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// How large such a file may be, in bytes: several times all certificates that systems trust.
const MAX_BYTES: u64 = 4 << 20;

/// The text of a file of PEM, and the certificates in it, at least one.
///
/// # Errors
/// In words, which quote nothing of the file.
pub fn read_certificates(file: &Path) -> Result<(Vec<u8>, Vec<CertificateDer<'static>>), String> {
    let text = read_file_bytes(file, MAX_BYTES)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|error| unreadable(&error))?;
    if found.is_empty() {
        let problem =
            "there is no certificate in it: it must begin with -----BEGIN CERTIFICATE-----";
        return Err(problem.to_owned());
    }
    Ok((text, found))
}

/// The text of a file of PEM that other accounts may not use ([`attune_core::private`]), and the first key in it.
///
/// # Errors
/// In words, which quote nothing of the file.
pub fn read_private_key(file: &Path) -> Result<(Vec<u8>, PrivateKeyDer<'static>), String> {
    let text = read_private_bytes(file, MAX_BYTES)?;
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        pem::Error::NoItemsFound if contains(&text, b"ENCRYPTED PRIVATE KEY") => {
            "the key is encrypted, and nobody is there at a start to be asked for the password: decrypt it with \
             openssl pkey -in OLD -out NEW"
                .to_owned()
        }
        pem::Error::NoItemsFound => {
            "there is no private key in it: it must begin with -----BEGIN PRIVATE KEY-----, or RSA or EC before \
             PRIVATE"
                .to_owned()
        }
        error => unreadable(&error),
    })?;
    Ok((text, key))
}

/// Never repeats what was read, which may be a key.
fn unreadable(error: &pem::Error) -> String {
    let what = match error {
        pem::Error::MissingSectionEnd { .. } => "a line that begins with -----END is missing",
        pem::Error::IllegalSectionStart { .. } => "a line that begins with -----BEGIN is not whole",
        pem::Error::Base64Decode(_) => "what stands between its lines is no base64",
        _ => "it is not PEM",
    };
    what.to_owned()
}

fn contains(text: &[u8], words: &[u8]) -> bool {
    text.windows(words.len()).any(|part| part == words)
}
