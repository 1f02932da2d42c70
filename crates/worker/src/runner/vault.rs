//! The secrets of runs: what is sealed in their parameters, and what their environment names.

use std::borrow::Cow;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use attune_core::secret::check_secret_name;
use attune_core::{Builtin, EndCode, EnvValue, Outcome, Run, Status};
use attune_messages::v2::Grant;
use attune_secrets::{OpenError, Secrets};

use crate::options::SecretOptions;

/// What stands before the name of a secret among what systemd hands the process.
const CREDENTIAL: &str = "secret.";

/// Opens what runs need, just before they begin; nothing of it is kept.
pub(super) struct Vault {
    options: SecretOptions,
}

/// Why a run cannot be given its secrets.
pub(super) enum Missing {
    /// This worker lacks the key of this id, as these words say; another one may have it.
    Key { id: String, why: String },
    /// With this the run ends.
    Secret(Outcome),
}

/// A grant as a run needs it, and what may not leave the worker of it.
type Opened<'g> = (Cow<'g, Grant>, Secrets);

impl Vault {
    pub(super) fn new(options: &SecretOptions) -> Self {
        Self {
            options: options.clone(),
        }
    }

    /// Opens what is sealed in the parameters.
    ///
    /// # Errors
    /// When they are not to be had here.
    pub(super) fn open<'g>(&self, request: &'g Grant) -> Result<Opened<'g>, Missing> {
        let (request, values) = self.unseal(request)?;
        Ok((request, Secrets::new(values)))
    }

    /// Opens what is sealed in the parameters, and reads what the environment of a program names.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(super) async fn open_all<'g>(&self, request: &'g Grant) -> Result<Opened<'g>, Missing> {
        let (mut request, mut values) = self.unseal(request)?;
        let sees_env = matches!(
            request.run,
            Run::Program(_) | Run::Builtin(Builtin::Command)
        );
        if sees_env && request.env.values().any(|value| value.plain().is_none()) {
            for (variable, value) in &mut request.to_mut().env {
                let Some(name) = value.secret_name() else {
                    continue;
                };
                let text = self.find(name).await.map_err(|why| {
                    missing(format!(
                        "the secret `{name}`, which `env.{variable}` names, {why}"
                    ))
                })?;
                values.push(text.clone());
                *value = EnvValue::Plain(text);
            }
        }
        Ok((request, Secrets::new(values)))
    }

    /// What was sealed as it was, and the texts of it.
    fn unseal<'g>(&self, request: &'g Grant) -> Result<(Cow<'g, Grant>, Vec<String>), Missing> {
        let keys = &self.options.keys;
        let opened = keys.open(&request.action_ref, &request.parameters);
        let Some(opened) = opened.map_err(unopened)? else {
            return Ok((Cow::Borrowed(request), Vec::new()));
        };
        let mut request = request.clone();
        request.parameters = opened.parameters;
        Ok((Cow::Owned(request), opened.values))
    }

    /// The secret of this name, without the end of its last line.
    async fn find(&self, name: &str) -> Result<String, String> {
        check_secret_name(name).map_err(|problem| format!("cannot be had: {problem}"))?;
        let (places, read) = (self.places(name), self.options.read);
        let found = tokio::task::spawn_blocking(move || {
            let found = places.into_iter().find(|place| place.exists());
            found.map(|place| read_whole(&place, read))
        });
        match found.await {
            Ok(Some(text)) => text,
            Ok(None) => Err(self.way_out(name)),
            Err(error) => Err(format!("could not be read: {error}")),
        }
    }

    /// Where a secret may be, the first one first.
    fn places(&self, name: &str) -> Vec<PathBuf> {
        let credential = |dir: &PathBuf| dir.join(format!("{CREDENTIAL}{name}"));
        let credential = self.options.credentials.as_ref().map(credential);
        let own = self.options.dir.as_ref().map(|dir| dir.join(name));
        credential.into_iter().chain(own).collect()
    }

    fn way_out(&self, name: &str) -> String {
        let own = match &self.options.dir {
            Some(dir) => format!("put it into {}", dir.join(name).display()),
            None => format!("set worker.secrets_dir and put it into its file `{name}`"),
        };
        format!(
            "is not on this worker: {own}, or hand it to its unit as the credential `{CREDENTIAL}{name}`"
        )
    }
}

fn read_whole(place: &Path, read: fn(&Path) -> Result<String, String>) -> Result<String, String> {
    let unusable = |why: &str| Err(format!("cannot be used: {}: {why}", place.display()));
    // Whoever may put links there chooses what is read with the rights of the worker.
    let folder = place.parent().map(std::fs::metadata);
    if folder.is_some_and(|it| it.is_ok_and(|about| about.permissions().mode() & 0o002 != 0)) {
        return unusable("everybody may write into its folder (chmod o-w)");
    }
    match read(place) {
        Err(why) => unusable(&why),
        Ok(text) if text.contains('\0') => unusable("it has a NUL character"),
        Ok(text) => {
            let text = text.strip_suffix('\n').unwrap_or(&text);
            match text.strip_suffix('\r').unwrap_or(text) {
                // As a full disk or a copy that was broken off leaves it.
                "" => unusable("it is empty"),
                text => Ok(text.to_owned()),
            }
        }
    }
}

fn unopened(error: OpenError) -> Missing {
    let why = error.to_string();
    match error {
        OpenError::NoKey { key: id, .. } | OpenError::OtherKey { key: id, .. } => {
            Missing::Key { id, why }
        }
        OpenError::Broken(_) => missing(why),
    }
}

fn missing(why: String) -> Missing {
    Missing::Secret(Outcome::coded(
        Status::Failed,
        EndCode::SecretUnavailable,
        why,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_secret_is_found_where_it_may_be_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let (credentials, own) = (dir.path().join("credentials"), dir.path().join("own"));
        for (place, text) in [
            (credentials.join("secret.token"), "from systemd\n"),
            (credentials.join("database.url"), "postgres://a:b@c/d"),
            (own.join("token"), "hidden by the other"),
            (own.join("pin"), "123\n\n"),
            (own.join("nul"), "a\0b"),
        ] {
            std::fs::create_dir_all(place.parent().unwrap()).unwrap();
            std::fs::write(place, text).unwrap();
        }
        let vault = Vault::new(&SecretOptions {
            dir: Some(own),
            credentials: Some(credentials),
            ..SecretOptions::default()
        });
        assert_eq!(vault.find("token").await.as_deref(), Ok("from systemd"));
        assert_eq!(vault.find("pin").await.as_deref(), Ok("123\n"));
        for (name, said) in [
            ("database.url", "secret.database.url"),
            ("other", "is not on this worker"),
            ("../own/pin", "no name of a secret"),
            ("nul", "NUL"),
        ] {
            let why = vault.find(name).await.unwrap_err();
            assert!(why.contains(said), "{why}");
        }
    }
}
