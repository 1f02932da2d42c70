//! The keys by which what is secret in parameters is sealed.

use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use attune_config::{Settings, read_private_file};
use attune_secrets::Keyring;
use chrono::Utc;
use clap::Subcommand;

use crate::print_all;

#[derive(Debug, Subcommand)]
pub(crate) enum SecretsCommand {
    /// Print a line with a new key for the file that `secrets.key_file` names. Put first it encrypts, and the
    /// lines below it still decrypt.
    NewKey {
        /// Its name, which stands with all that it encrypts. Not given: `k` and the time.
        #[arg(long, value_name = "NAME")]
        id: Option<String>,
    },
}

/// Does what is asked about keys.
///
/// # Errors
/// When the name is none, or there are no random numbers.
pub(crate) fn run(command: &SecretsCommand) -> anyhow::Result<ExitCode> {
    let SecretsCommand::NewKey { id } = command;
    let id = id.clone();
    // The time is for people; the rest, so that two machines never give two keys one name.
    let id = id.unwrap_or_else(|| {
        let time = Utc::now().format("k%Y%m%d-%H%M%S");
        let rest = uuid::Uuid::new_v4().simple().to_string();
        format!("{time}-{}", &rest[..8])
    });
    let key = attune_secrets::new_key(&id).map_err(|words| anyhow!(words))?;
    print_all(&format!("{key}\n"))
}

/// The keys that the settings name; none where they name no file.
///
/// # Errors
/// When the file cannot be used.
pub(crate) fn keyring(settings: &Settings) -> anyhow::Result<Keyring> {
    let Some(path) = &settings.secrets.key_file else {
        return Ok(Keyring::default());
    };
    let said = || format!("secrets.key_file: {}", path.display());
    let text = read_private_file(path).map_err(|words| anyhow!(words));
    Keyring::parse(&text.with_context(said)?).with_context(said)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use attune_config::Loader;

    use super::*;

    #[test]
    fn a_file_of_keys_is_for_its_owner_and_must_be_right() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("keys");
        let of = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let flags = [("secrets.key_file", path.to_str().unwrap())];
            let loaded = Loader::new().flags(flags).load().unwrap();
            keyring(&loaded.settings).map_err(|error| format!("{error:#}"))
        };
        let line = attune_secrets::new_key("k1").unwrap();
        assert_eq!(format!("{:?}", of(&line, 0o640).unwrap()), r#"["k1"]"#);
        for (text, mode, said) in [
            (line.as_str(), 0o644, "chmod o="),
            ("", 0o600, "attune secrets new-key"),
            ("k1:short", 0o600, "line 1"),
        ] {
            let words = of(text, mode).unwrap_err();
            assert!(
                words.contains(said) && words.contains("secrets.key_file"),
                "{words}"
            );
            assert!(!words.contains("short"), "{words}");
        }
    }
}
