//! Authorities and certificates for tests, made when they are needed and good for an hour.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// An authority of its own.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, as PEM.
    pub pem: String,
}

/// A certificate and its key, as PEM.
pub struct Certified {
    /// The certificate.
    pub cert: String,
    /// The key.
    pub key: String,
}

impl Authority {
    /// A new one.
    ///
    /// # Panics
    /// When no key can be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("the system has random numbers");
        let cert = params.self_signed(&key).expect("the parameters are whole");
        Self {
            pem: cert.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// A certificate for a server of these names or addresses.
    ///
    /// # Panics
    /// When a name is none.
    #[must_use]
    pub fn server(&self, names: &[&str]) -> Certified {
        self.sign(params_for(names, ExtendedKeyUsagePurpose::ServerAuth))
    }

    /// The same, over since long ago.
    ///
    /// # Panics
    /// When a name is none.
    #[must_use]
    pub fn expired_server(&self, names: &[&str]) -> Certified {
        let mut params = params_for(names, ExtendedKeyUsagePurpose::ServerAuth);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.sign(params)
    }

    /// A certificate for a client.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn client(&self) -> Certified {
        self.sign(params_for(&[], ExtendedKeyUsagePurpose::ClientAuth))
    }

    fn sign(&self, params: CertificateParams) -> Certified {
        let key = KeyPair::generate().expect("the system has random numbers");
        let cert = params.signed_by(&key, &self.issuer);
        Certified {
            cert: cert.expect("the parameters are whole").pem(),
            key: key.serialize_pem(),
        }
    }
}

fn params_for(names: &[&str], usage: ExtendedKeyUsagePurpose) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("a name of a test is one");
    params.extended_key_usages = vec![usage];
    params
}

impl Certified {
    /// Writes both into a folder, the key for its owner alone; gives their paths.
    ///
    /// # Panics
    /// When that fails.
    pub fn write(&self, folder: &Path) -> (PathBuf, PathBuf) {
        let (cert, key) = (folder.join("api.pem"), folder.join("api.key"));
        replace(&cert, &self.cert, 0o644);
        replace(&key, &self.key, 0o600);
        (cert, key)
    }
}

/// Puts a file with a mode in the place of what was there, at once and whole.
///
/// # Panics
/// When that fails.
pub fn replace(file: &Path, text: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    let new = file.with_extension("new");
    std::fs::write(&new, text).expect("a folder of a test can be written");
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&new, mode).expect("its owner may");
    std::fs::rename(&new, file).expect("both are in one folder");
}
