//! A user of the broker and a login of the database for each part of a system, with the rights that the program
//! itself prints and grants.

use std::collections::BTreeMap;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::process::Command;

use crate::{Broker, Database, Launch, within};

/// The pools that have workers, and the client.
pub(crate) const POOLS: [&str; 2] = ["default", "gpu"];
const CLIENT: &str = "shop";

/// The URLs of each part, by the name of its user such as `attune-worker-gpu`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Accounts {
    brokers: BTreeMap<String, String>,
    databases: BTreeMap<String, String>,
    /// What stands before the names of users of the broker.
    tag: String,
}

impl Accounts {
    /// Makes everything that the parts of a system need, by `operator`: what an operator does on an empty
    /// broker and a migrated database.
    pub(crate) async fn make(
        operator: &Launch,
        broker: &Broker,
        database: &Database,
    ) -> anyhow::Result<Self> {
        let roles = format!("r{}_", &database.name()[database.name().len() - 12..]);
        let pools = POOLS.map(|pool| ["--pool", pool]);
        let grant = [&["migrate", "--grants", &roles][..], pools.as_flattened()].concat();
        run(operator, &grant).await?;
        run(operator, &["topology", "apply"]).await?;
        let ask = [
            "topology",
            "permissions",
            "--format",
            "json",
            "--client",
            CLIENT,
        ];
        let printed = run(operator, &[&ask[..], pools.as_flattened()].concat()).await?;
        let printed: Value = serde_json::from_str(&printed).context("not JSON")?;
        let tag = format!("{}-", &roles[..roles.len() - 1]);
        let mut made = Self {
            tag: tag.clone(),
            ..Self::default()
        };
        let rights = printed["permissions"]
            .as_array()
            .context("no permissions")?;
        let keys = printed["topic_permissions"].as_array().context("no keys")?;
        for right in rights {
            let user = right["user"].as_str().context("no user")?;
            let keys = keys.iter().filter(|key| key["user"] == right["user"]);
            let keys: Vec<&Value> = keys.collect();
            let url = broker
                .account(&format!("{tag}{user}"), right, &keys)
                .await?;
            made.brokers.insert(user.to_owned(), url);
        }
        for (user, groups) in [
            ("attune-executor", vec!["executor".to_owned()]),
            ("attune-listener", vec!["listener".to_owned()]),
            ("attune-stats", vec!["stats".to_owned()]),
            ("attune-api", vec!["api".to_owned()]),
            ("attune-monitor", vec!["monitor".to_owned()]),
            ("attune-worker-default", worker_of("default")),
            ("attune-worker-gpu", worker_of("gpu")),
        ] {
            let login = format!("{roles}login_{}", user.replace('-', "_"));
            let groups: Vec<String> = groups.iter().map(|it| format!("\"{roles}{it}\"")).collect();
            let make = format!(
                "CREATE ROLE {login} LOGIN PASSWORD 'it' IN ROLE {}",
                groups.join(", ")
            );
            let mut admin = database.connect().await?;
            sqlx::query(AssertSqlSafe(make)).execute(&mut admin).await?;
            let mut url = url::Url::parse(database.url())?;
            url.set_username(&login).ok().context("a URL with a user")?;
            url.set_password(Some("it"))
                .ok()
                .context("a URL with a password")?;
            made.databases.insert(user.to_owned(), url.into());
        }
        Ok(made)
    }

    /// What a process of this role is to be set to.
    pub(crate) fn settings(&self, role: &str, pool: &str) -> Vec<(&'static str, String)> {
        let user = match role {
            "completion-listener" => "attune-listener".to_owned(),
            "worker" => format!("attune-worker-{pool}"),
            role => format!("attune-{role}"),
        };
        let of = |key, urls: &BTreeMap<String, String>| Some((key, urls.get(&user)?.clone()));
        let urls = [
            of("broker.url", &self.brokers),
            of("database.url", &self.databases),
        ];
        urls.into_iter().flatten().collect()
    }

    /// As whom the broker knows a part.
    pub(crate) fn user(&self, part: &str) -> String {
        format!("{}{part}", self.tag)
    }

    /// Where a part reaches the broker.
    pub(crate) fn broker(&self, part: &str) -> anyhow::Result<&str> {
        let url = self.brokers.get(part);
        Ok(url.with_context(|| format!("{part} has no user"))?)
    }

    /// A connection to the database as a part.
    pub(crate) async fn connect(&self, part: &str) -> anyhow::Result<PgConnection> {
        let url = self.databases.get(part);
        let url = url.with_context(|| format!("{part} has no login"))?;
        Ok(PgConnection::connect(url).await?)
    }
}

/// The groups of a worker.
fn worker_of(pool: &str) -> Vec<String> {
    vec!["worker".to_owned(), format!("pool_{pool}")]
}

/// Runs a command of an operator to its end, which must be good; what it prints.
async fn run(operator: &Launch, args: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(&operator.binary);
    command
        .args(args)
        .env_clear()
        .envs(&operator.env)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .current_dir(&operator.folder);
    let output = within(&format!("the end of {args:?}"), command.output()).await??;
    let [out, err] =
        [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
    ensure!(
        output.status.success(),
        "{args:?}: {}: {err}",
        output.status
    );
    Ok(out)
}
