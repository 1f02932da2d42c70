//! `attune keys create | list | rotate | revoke`.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use attune_api_types::{KeyList, KeyMade, KeyRequest, KeyState, KeyView, RotateRequest};
use attune_identity::{KeyId, Pattern, Rate, Rates, Role};
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use reqwest::Method;

use super::http::Http;
use super::render::{Column, duration, or_dash, table};
use super::{Connect, EXIT_CODES, Failure, Output};

const DAY_SECONDS: u64 = 24 * 3600;

/// What is asked about keys.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct KeysArguments {
    #[command(flatten)]
    pub(super) connect: Connect,
    /// Ask the database itself, as the settings name it (--config, ATTUNE__DATABASE__URL), and not a server:
    /// for the first key, or when no key is left.
    #[arg(long, global = true)]
    database: bool,
    #[command(subcommand)]
    command: KeysCommand,
}

/// What can be done with keys.
#[derive(Debug, Clone, Subcommand)]
enum KeysCommand {
    /// Make a key and print it; nobody can print it again.
    #[command(after_help = EXIT_CODES)]
    Create(CreateArguments),
    /// List all keys, without their secrets.
    #[command(after_help = EXIT_CODES)]
    List,
    /// Make a key that takes the place of another, which stays good for a while.
    #[command(after_help = EXIT_CODES)]
    Rotate(RotateArguments),
    /// End a key. Servers that have just used it take it for five seconds more.
    #[command(after_help = EXIT_CODES)]
    Revoke {
        /// The key, as `attune keys list` shows it.
        #[arg(value_name = "ID")]
        id: KeyId,
    },
}

/// The key to be made.
#[derive(Debug, Clone, Args)]
struct CreateArguments {
    /// Whom it stands for, in executions and in the audit log.
    #[arg(value_name = "NAME")]
    name: String,
    /// What it is for: viewer, submitter, worker, author, operator or admin; more than once for several.
    #[arg(long = "role", value_name = "ROLE", required = true)]
    roles: Vec<Role>,
    /// Actions that it may ask for or define, such as `shop.*`; all unless given.
    #[arg(long = "actions", value_name = "PATTERN")]
    actions: Vec<Pattern>,
    /// Pools that it may take work for, or whose workers run what it defines; `*` for all.
    #[arg(long = "pool", value_name = "PATTERN")]
    pools: Vec<Pattern>,
    /// Let it ask for executions in the name of others: for a gateway that knows who they are.
    #[arg(long)]
    impersonate: bool,
    /// Executions that it may ask for in a second, and five times as many at once; as the settings say
    /// (api.rates) unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=200_000))]
    submit_rate: Option<u32>,
    /// How many of its executions may wait at once; as many as there is room for unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_waiting: Option<u32>,
    /// How long it is good, such as 90d, 12h, 30m or 60s; until it is revoked unless given.
    #[arg(long, value_name = "TIME", value_parser = span)]
    expires: Option<u64>,
    #[command(flatten)]
    place: Place,
    /// Leave it as it is when there is a good key of this name: with --out, for scripts that may run twice.
    #[arg(long)]
    if_missing: bool,
}

/// The key to be replaced.
#[derive(Debug, Clone, Args)]
struct RotateArguments {
    /// The key, as `attune keys list` shows it.
    #[arg(value_name = "ID")]
    id: KeyId,
    /// How long the old key stays good.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = span)]
    overlap: u64,
    /// How long the new key is good; as long as the one before unless given.
    #[arg(long, value_name = "TIME", value_parser = span)]
    expires: Option<u64>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Clone, Args)]
struct Place {
    /// Write the key into a new file that nobody else may read, instead of printing it.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Reads a time such as 90d; gives seconds.
fn span(text: &str) -> Result<u64, String> {
    let wrong = || "write a number and s, m, h or d, such as 90d".to_owned();
    let units = [("s", 1), ("m", 60), ("h", 3600), ("d", DAY_SECONDS)];
    let read = |(unit, seconds)| Some((text.strip_suffix(unit)?, seconds));
    let (number, seconds) = units.into_iter().find_map(read).ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).ok_or_else(wrong)
}

impl CreateArguments {
    fn request(&self) -> KeyRequest {
        KeyRequest {
            name: self.name.clone(),
            roles: self.roles.clone(),
            actions: Some(self.actions.clone()).filter(|it| !it.is_empty()),
            pools: Some(self.pools.clone()).filter(|it| !it.is_empty()),
            impersonate: self.impersonate,
            max_waiting: self.max_waiting,
            rates: self.submit_rate.map(|per_second| Rates {
                submit: Some(Rate {
                    per_second,
                    burst: per_second.saturating_mul(5),
                }),
                ..Rates::default()
            }),
            lifetime_seconds: self.expires,
        }
    }
}

/// Whoever carries out what is asked: a server, or the database itself.
pub trait Keys {
    /// Makes a key.
    ///
    /// # Errors
    /// The words for whoever asks, and whether there is a good key of this name.
    fn create(&self, asked: KeyRequest) -> impl Future<Output = Result<KeyMade, KeyFailure>>;

    /// All keys.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    fn list(&self) -> impl Future<Output = Result<KeyList, KeyFailure>>;

    /// Makes a key in the place of another.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    fn rotate(
        &self,
        id: &KeyId,
        asked: RotateRequest,
    ) -> impl Future<Output = Result<KeyMade, KeyFailure>>;

    /// Ends a key.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    fn revoke(&self, id: &KeyId) -> impl Future<Output = Result<(), KeyFailure>>;
}

/// Why nothing was done.
#[derive(Debug)]
pub struct KeyFailure(Failure);

impl KeyFailure {
    /// It was refused for this reason.
    pub fn refused(message: impl Into<String>) -> Self {
        Self(Failure::usage(message))
    }

    /// Nobody knows whether it was done.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self(Failure::unknown(message))
    }
}

/// A server.
struct Server<'a>(&'a Http);

impl Keys for Server<'_> {
    async fn create(&self, asked: KeyRequest) -> Result<KeyMade, KeyFailure> {
        let request = self.0.request(Method::POST, "/keys").json(&asked);
        self.0.send(request).await.map_err(failure)
    }

    async fn list(&self) -> Result<KeyList, KeyFailure> {
        self.0.get("/keys", &[]).await.map_err(failure)
    }

    async fn rotate(&self, id: &KeyId, asked: RotateRequest) -> Result<KeyMade, KeyFailure> {
        let path = format!("/keys/{id}/rotate");
        let request = self.0.request(Method::POST, &path).json(&asked);
        self.0.send(request).await.map_err(failure)
    }

    async fn revoke(&self, id: &KeyId) -> Result<(), KeyFailure> {
        let revoked = self.0.delete(&format!("/keys/{id}"), &[]).await;
        revoked.map_err(failure)
    }
}

fn failure(error: super::http::CallError) -> KeyFailure {
    KeyFailure(error.into())
}

impl KeysArguments {
    /// Whether the database is to be asked and not a server.
    pub fn asks_database(&self) -> bool {
        self.database
    }
}

pub(super) async fn execute(http: &Http, arguments: KeysArguments) -> Result<Output, Failure> {
    carry_out(&Server(http), &arguments).await
}

pub(super) async fn carry_out(
    keys: &impl Keys,
    arguments: &KeysArguments,
) -> Result<Output, Failure> {
    let json = arguments.connect.json;
    let done = match &arguments.command {
        KeysCommand::Create(asked) => create(keys, asked, json).await,
        KeysCommand::List => list(keys, json).await,
        KeysCommand::Rotate(asked) => rotate(keys, asked, json).await,
        KeysCommand::Revoke { id } => keys.revoke(id).await.map(|()| match json {
            true => Output::json(&serde_json::json!({"id": id, "state": "revoked"})),
            false => Output::text(format!("the key {id} is revoked")),
        }),
    };
    done.map_err(|KeyFailure(failure)| failure)
}

async fn create(
    keys: &impl Keys,
    asked: &CreateArguments,
    json: bool,
) -> Result<Output, KeyFailure> {
    if asked.if_missing {
        let known = keys.list().await?.keys;
        let good = |it: &&KeyView| it.name == asked.name && it.state == KeyState::Good;
        if let Some(key) = known.iter().find(good) {
            let words = format!("there is a good key of {} already: {}", key.name, key.id);
            asked.place.is_kept(&words)?;
            return Ok(match json {
                true => Output::json(key),
                false => Output::text(words),
            });
        }
    }
    let file = asked.place.reserve()?;
    match keys.create(asked.request()).await {
        Ok(made) => told(made, file, json),
        Err(error) => Err(file.given_up(error)),
    }
}

async fn rotate(
    keys: &impl Keys,
    asked: &RotateArguments,
    json: bool,
) -> Result<Output, KeyFailure> {
    let file = asked.place.reserve()?;
    let request = RotateRequest {
        overlap_seconds: asked.overlap,
        lifetime_seconds: asked.expires,
    };
    match keys.rotate(&asked.id, request).await {
        Ok(made) => told(made, file, json),
        Err(error) => Err(file.given_up(error)),
    }
}

/// A file that is to hold a key, made before the key is: one that cannot be written down would be lost.
struct Reserved(Option<(PathBuf, std::fs::File)>);

impl Place {
    fn reserve(&self) -> Result<Reserved, KeyFailure> {
        let Some(path) = &self.out else {
            return Ok(Reserved(None));
        };
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|error| {
                let path = path.display();
                KeyFailure::refused(format!("--out {path}: {error}; no key was made"))
            })?;
        Ok(Reserved(Some((path.clone(), file))))
    }

    /// Refuses to go on with a key that is known, and that nobody has written down where it was to be.
    fn is_kept(&self, known: &str) -> Result<(), KeyFailure> {
        match &self.out {
            Some(path) if !path.exists() => Err(KeyFailure::refused(format!(
                "{known}, and --out {} is not there: bring the file from where it was made, or put another key in the \
                 place of that one (`attune keys rotate`)",
                path.display()
            ))),
            _ => Ok(()),
        }
    }
}

impl Reserved {
    /// Nothing is written.
    fn given_up(self, error: KeyFailure) -> KeyFailure {
        if let Some((path, _)) = self.0 {
            // A file that stays is empty and harms nobody.
            std::fs::remove_file(path).ok();
        }
        error
    }
}

/// Tells a key that was made, or where it was written.
fn told(made: KeyMade, file: Reserved, json: bool) -> Result<Output, KeyFailure> {
    let Some((path, file)) = file.0 else {
        let (id, name) = (&made.id, &made.name);
        let words = format!("the key {id} of {name}; keep it, nobody can show it again");
        return Ok(match json {
            true => Output::json(&made),
            false => Output {
                problems: vec![words],
                ..Output::text(made.key)
            },
        });
    };
    let place = path.display();
    write(&path, file, &made.key).map_err(|error| {
        KeyFailure::unknown(format!(
            "the key {} was made and cannot be written to {place}: {error}; revoke it (`attune keys revoke \
             {}`) and make another",
            made.id, made.id
        ))
    })?;
    Ok(match json {
        true => Output::json(&serde_json::json!({"id": made.id, "name": made.name, "file": path})),
        false => Output::text(format!(
            "the key {} of {} is in {place}",
            made.id, made.name
        )),
    })
}

fn write(path: &Path, mut file: std::fs::File, key: &str) -> io::Result<()> {
    writeln!(file, "{key}")?;
    file.sync_all()?;
    // The name of the file as well, so that a key that is said to be there is there after a power cut.
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    std::fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

async fn list(keys: &impl Keys, json: bool) -> Result<Output, KeyFailure> {
    let list = keys.list().await?;
    Ok(match json {
        true => Output::json(&list),
        false => Output::text(list_table(&list.keys, Utc::now())),
    })
}

/// What differs from key to key comes last, so that the usual row fits into 80 columns.
fn list_table(keys: &[KeyView], now: DateTime<Utc>) -> String {
    let rows = keys.iter().map(|key| {
        let roles: Vec<_> = key.roles.iter().map(|it| it.name()).collect();
        let state = match (key.state, key.expires) {
            (KeyState::Good, Some(at)) => format!("good for {}", duration(at - now)),
            (KeyState::Good, None) => "good".to_owned(),
            (KeyState::Expired, _) => "expired".to_owned(),
            (KeyState::Revoked, _) => "revoked".to_owned(),
        };
        vec![
            key.id.to_string(),
            key.name.clone(),
            state,
            roles.join(" "),
            or_dash(key.last_used.map(|at| duration(now - at) + " ago")),
            or_dash(Some(bounds(key)).filter(|it| !it.is_empty())),
        ]
    });
    let columns = [
        Column::Words("id"),
        Column::Text("name"),
        Column::Words("state"),
        Column::Text("roles"),
        Column::Words("used"),
        Column::Text("bounds"),
    ];
    table(&columns, rows.collect())
}

/// What a key was given beside its roles, named as the options that give it.
fn bounds(key: &KeyView) -> String {
    let all = |name: &str, patterns: &[Pattern]| {
        let words: Vec<_> = patterns.iter().map(Pattern::as_str).collect();
        (!words.is_empty()).then(|| format!("{name} {}", words.join(" ")))
    };
    let rate = |name: &str, rate: Option<Rate>| rate.map(|it| format!("{name} {}", it.per_second));
    let words = [
        all("actions", &key.actions),
        all("pool", &key.pools),
        key.impersonate.then(|| "impersonate".to_owned()),
        key.max_waiting.map(|most| format!("max-waiting {most}")),
        rate("submit-rate", key.rates.submit),
        rate("read-rate", key.rates.read),
        rate("change-rate", key.rates.change),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn a_key_is_a_row_with_what_bounds_it() {
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let mut key: KeyView = serde_json::from_value(serde_json::json!({
            "id": "3f9c2a7be0d1", "name": "ci-deploy", "state": "good", "roles": ["submitter"], "actions": [],
            "pools": [], "impersonate": false, "rates": {}, "created": now, "created_by": "ann",
            "expires": now + TimeDelta::days(90), "last_used": now - TimeDelta::seconds(12)
        }))
        .unwrap();
        let table = |key: &KeyView| list_table(std::slice::from_ref(key), now);
        let usual = table(&key);
        assert!(usual.lines().all(|it| it.len() <= 80), "{usual}");
        assert!(usual.ends_with("12.0s ago  -"), "{usual}");
        key.actions = vec!["shop.*".parse().unwrap()];
        (key.impersonate, key.max_waiting) = (true, Some(5));
        key.rates.submit = Some(Rate {
            per_second: 7,
            burst: 14,
        });
        let words = "actions shop.*, impersonate, max-waiting 5, submit-rate 7";
        assert!(table(&key).ends_with(words), "{}", table(&key));
    }

    #[test]
    fn a_time_has_a_unit() {
        for (text, seconds) in [
            ("90d", 90 * DAY_SECONDS),
            ("12h", 43_200),
            ("30m", 1800),
            ("5s", 5),
        ] {
            assert_eq!(span(text), Ok(seconds), "{text}");
        }
        for text in [
            "",
            "d",
            "90",
            "-1d",
            "1.5h",
            "99999999999999999999d",
            "1w",
            "1\u{e4}",
        ] {
            assert!(span(text).is_err(), "{text:?}");
        }
    }
}
