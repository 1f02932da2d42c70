//! Certificates in files: whether they can be used, and for how long.

use std::path::PathBuf;

use attune_runtime::http::{Tls, TlsError, TlsFiles, certificate_left};

use super::Patient;
use super::finding::{Findings, State};
use super::pages::CERTIFICATES;
use crate::roles::Role;

/// A certificate that is good for less than this is to be replaced now, in seconds.
const SOON: i64 = 14 * DAY;
const DAY: i64 = 24 * 3600;

pub(super) fn look(patient: &Patient) -> Findings {
    let mut found = Findings::of("certificates");
    let settings = &patient.settings;
    if patient.has(Role::Api) {
        let api = &settings.api.tls;
        match (&api.cert_file, &api.key_file) {
            (Some(cert), Some(key)) => pair(
                "api.tls",
                (cert, key),
                api.client_ca_file.as_ref(),
                &mut found,
            ),
            _ => found.skip("api.tls", "the API speaks no TLS"),
        }
    }
    if patient.is_embedded() {
        return found;
    }
    let broker = &settings.broker.tls;
    match (&broker.cert_file, &broker.key_file) {
        (Some(cert), Some(key)) => pair("broker.tls", (cert, key), None, &mut found),
        _ => found.skip("broker.tls", "no certificate of this process is set"),
    }
    if let Some(ca) = &broker.ca_file {
        let left = certificate_left(("broker.tls", "ca_file"), ca);
        let shown = ca.display().to_string();
        judge(
            "broker.tls",
            left.map(|left| vec![(shown, left)]),
            &mut found,
        );
    }
    found
}

/// A certificate and its key.
fn pair(
    section: &'static str,
    (cert, key): (&PathBuf, &PathBuf),
    client_ca: Option<&PathBuf>,
    found: &mut Findings,
) {
    let files = TlsFiles {
        section,
        cert: cert.clone(),
        key: key.clone(),
        client_ca: client_ca.cloned(),
    };
    let seen = Tls::load(files).map(|tls| {
        let each = tls.expiries().into_iter();
        each.map(|(file, left)| (file.display().to_string(), left))
            .collect()
    });
    judge(section, seen, found);
}

/// For how many seconds the first certificate of each file is good.
fn judge(name: &'static str, seen: Result<Vec<(String, i64)>, TlsError>, found: &mut Findings) {
    let seen = match seen {
        Ok(seen) => seen,
        Err(error) => {
            let advice = "put a certificate and its own key there, which no other account may read";
            return found.problem(name, error.to_string(), (advice, CERTIFICATES));
        }
    };
    for (file, left) in seen {
        let days = left.div_euclid(DAY);
        let advice = ("put a new one in its place", CERTIFICATES);
        let faults = [
            (
                left < 0,
                State::Problem,
                format!("{file} is over, since {} days", (-left).div_euclid(DAY)),
                advice,
            ),
            (
                left < SOON,
                State::Warning,
                format!("{file} is good for {days} days more"),
                advice,
            ),
        ];
        found.first(name, faults, || {
            format!("{file} is good for {days} days more")
        });
    }
}
