//! Keys, made and ended in the store itself: for the first one, or when no key is left.

use std::fs::OpenOptions;
use std::io::{IsTerminal as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use attune_api::{ApiError, keys};
use attune_api_types::{KeyList, KeyMade, KeyRequest, RotateRequest};
use attune_cli::{KeyFailure, Keys, KeysArguments};
use attune_config::Settings;
use attune_identity::{KeyId, Pattern, Role};
use attune_store::{Actor, Store, StoreError};

use crate::opening::{Patience, with_store};

/// How long the store may take to answer.
const GIVE_UP_AFTER: Duration = Duration::from_secs(60);

/// Does with keys what is asked, in the store that the settings name.
pub(crate) async fn run(
    settings: &Settings,
    arguments: &KeysArguments,
) -> anyhow::Result<ExitCode> {
    let patience = Patience::without_log(GIVE_UP_AFTER);
    let who = Actor::at_console(attune_cli::who(&std::env::var("USER").unwrap_or_default()));
    let mut code = ExitCode::SUCCESS;
    let outcome = with_store(settings, "keys", patience, async |store| {
        match store.check().await {
            // It says itself what does not fit, and the way out.
            Err(error @ StoreError::Schema(_)) => return Err(error.into()),
            checked => checked.context("the schema cannot be looked at")?,
        }
        let keys = InStore {
            store: Arc::clone(&store),
            who,
        };
        code = attune_cli::run_keys(&keys, arguments).await?;
        store.close().await;
        Ok(())
    });
    let outcome = outcome.await?;
    Ok(match outcome {
        ExitCode::SUCCESS => code,
        other => other,
    })
}

/// The file of the first key, in the folder of the data, where nobody sees it being told.
pub(crate) const FIRST_KEY_FILE: &str = "admin.key";

/// Makes the first key and tells it: in a file that nobody else may read, and on a terminal, where the log soon
/// stands in its place. What is printed elsewhere ends up in logs.
///
/// # Errors
/// When the store fails. That the file cannot be written is told, and ends nothing: on this machine no key is
/// needed to make another.
pub(crate) async fn hand_out_first_key(store: &dyn Store, folder: &Path) -> anyhow::Result<()> {
    let Some(made) = first_key(store).await? else {
        return Ok(());
    };
    let file = folder.join(FIRST_KEY_FILE);
    let kept = write_new(&file, &made.key);
    match &kept {
        Ok(()) => {
            tracing::info!(key.id = %made.id, file = %file.display(), "the first key is in a file")
        }
        Err(error) => tracing::warn!(
            key.id = %made.id, file = %file.display(), error.message = %error,
            "the first key was made and could not be written down; revoke it (`attune keys revoke`)"
        ),
    }
    if std::io::stdout().is_terminal() {
        let also = match kept {
            Ok(()) => format!(" It is in {} as well.", file.display()),
            Err(_) => String::new(),
        };
        crate::say(&format!(
            "The first key, which may do everything and is shown this once: {}\n(On this machine none is \
             needed unless api.auth is `required`.{also})",
            made.key
        ));
    }
    Ok(())
}

fn write_new(path: &Path, key: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    writeln!(file, "{key}")?;
    file.sync_all()
}

/// Makes the first key, which may do everything, if there is none yet.
async fn first_key(store: &dyn Store) -> anyhow::Result<Option<KeyMade>> {
    let asked = KeyRequest {
        max_waiting: None,
        name: "admin".to_owned(),
        roles: vec![Role::Admin, Role::Worker],
        actions: None,
        pools: Some(vec![Pattern::any()]),
        impersonate: false,
        rates: None,
        lifetime_seconds: None,
    };
    match keys::create(store, asked, Actor::system("attune"), true).await {
        Ok(made) => Ok(Some(made)),
        // There are keys already.
        Err(error) if error.detail.code == "CONFLICT" => Ok(None),
        Err(error) => Err(anyhow::anyhow!(error.detail.message)),
    }
}

struct InStore {
    store: Arc<dyn Store>,
    who: Actor,
}

impl Keys for InStore {
    async fn create(&self, asked: KeyRequest) -> Result<KeyMade, KeyFailure> {
        let made = keys::create(&*self.store, asked, self.who.clone(), false).await;
        made.map_err(failure)
    }

    async fn list(&self) -> Result<KeyList, KeyFailure> {
        keys::list(&*self.store).await.map_err(failure)
    }

    async fn rotate(&self, id: &KeyId, asked: RotateRequest) -> Result<KeyMade, KeyFailure> {
        let made = keys::rotate(&*self.store, id, asked, self.who.clone()).await;
        made.map_err(failure)
    }

    async fn revoke(&self, id: &KeyId) -> Result<(), KeyFailure> {
        let revoked = keys::revoke(&*self.store, id, &self.who).await;
        revoked.map_err(failure)
    }
}

fn failure(error: ApiError) -> KeyFailure {
    let words = format!("{} [{}]", error.detail.message, error.detail.code);
    match error.status.is_server_error() {
        true => KeyFailure::unknown(words),
        false => KeyFailure::refused(words),
    }
}
