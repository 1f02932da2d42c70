//! What the audit log says of a process that has begun.

use attune_config::{PrintFormat, Settings};
use attune_runtime::{Shutdown, error_chain};
use attune_store::ProcessStart;
use sha2::{Digest as _, Sha256};

use super::{Role, figures, name_of};
use crate::parts::Parts;

/// Has it written down, beside everything else: whether it can be is no reason not to begin. A process that is
/// nothing but a worker writes nothing: whoever has its login could fill the log.
pub(super) fn note(settings: &Settings, roles: &[Role], parts: &Parts, shutdown: &Shutdown) {
    if roles == [Role::Worker] {
        return;
    }
    let start = ProcessStart {
        account: account(),
        target: format!("{} {}", name_of(roles), figures::instance(settings, roles)),
        version: env!("VERSION_BUILT").to_owned(),
        settings_sha256: digest(settings),
    };
    let store = parts.store.clone();
    shutdown.spawn_finite("start note", async move {
        if let Err(error) = store.note_start(&start).await {
            tracing::warn!(
                error.message = error_chain(&error),
                "that this process has begun could not be written into the audit log"
            );
        }
    });
}

/// Of what `attune config print` shows, where secrets are hidden: two processes with one digest differ in secrets
/// at the most, and nobody can try out secrets against it.
fn digest(settings: &Settings) -> String {
    let digest = Sha256::digest(settings.print(PrintFormat::Json));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The account of this process, by its number where it has no name.
fn account() -> String {
    let uid = rustix::process::getuid().as_raw();
    let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    named(uid, &accounts).unwrap_or_else(|| format!("uid {uid}"))
}

fn named(uid: u32, accounts: &str) -> Option<String> {
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use attune_config::Loader;

    use super::*;

    #[test]
    fn an_account_is_named_where_it_has_a_name() {
        let accounts =
            "root:x:0:0:root:/root:/bin/sh\nattune:x:997:996::/var/lib/attune:/bin/false\n";
        assert_eq!(named(997, accounts).as_deref(), Some("attune"));
        assert_eq!(named(0, accounts).as_deref(), Some("root"));
        assert_eq!(named(1, accounts), None);
    }

    #[test]
    fn a_digest_tells_settings_apart_and_no_secrets() {
        let of = |key: &str, value: &str| {
            let loaded = Loader::new().flags([(key, value)]).load().unwrap();
            digest(&loaded.settings)
        };
        let url = |password: &str| format!("postgres://ann:{password}@db/attune");
        let one = of("database.url", &url("hunter2"));
        assert_eq!(one, of("database.url", &url("hunter3")));
        assert_ne!(one, of("worker.slots", "3"));
        assert_eq!(one.len(), 64);
    }
}
