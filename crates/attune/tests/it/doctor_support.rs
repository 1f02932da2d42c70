//! What the tests of `attune doctor` share: what it prints with `--json`, read and judged, and servers without
//! daemons.

use std::collections::BTreeMap;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use attune_testkit::{Broker, Database, Proxy, variable, within};
use serde_json::Value;
use sqlx::AssertSqlSafe;
use tempfile::TempDir;
use tokio::process::Command;

/// What the machine that tests run on, and its servers, may give reason for: root, an old broker, a superuser.
const USUAL: [&str; 5] = [
    "host/containment",
    "host/open files",
    "host/work_dir",
    "broker/version",
    "database/login",
];

/// What is a problem where nothing runs.
pub(crate) const NOTHING_RUNS: [&str; 4] = [
    "broker/readers",
    "cluster/executors",
    "cluster/owners",
    "cluster/workers",
];

/// One more problem than where nothing runs.
pub(crate) fn and(more: &str) -> Vec<&str> {
    [&[more], &NOTHING_RUNS[..]].concat()
}

/// What it found.
pub(crate) struct Report {
    pub(crate) code: i32,
    pub(crate) shown: Value,
}

impl Report {
    /// Reads what was printed, which must have the form that is documented.
    pub(crate) fn of((code, out, err): (i32, String, String)) -> anyhow::Result<Self> {
        ensure!(err.is_empty(), "it speaks on stderr: {err}");
        let shown: Value = serde_json::from_str(&out).with_context(|| out.clone())?;
        ensure!(shown["version"] == 1, "{shown}");
        let mut worst = "ok";
        for check in shown["checks"].as_array().context("no checks")? {
            for key in ["area", "name", "says"] {
                let is_said = check[key].as_str().is_some_and(|it| !it.is_empty());
                ensure!(is_said, "no `{key}`: {check}");
            }
            let state = check["state"].as_str().context("no state")?;
            let is_told = check["advice"].is_string() && check["docs"].is_string();
            match state {
                "ok" | "skipped" => ensure!(check.get("advice").is_none(), "{check}"),
                "warning" => ensure!(is_told, "no way out: {check}"),
                _ => ensure!(state == "problem" && is_told, "{check}"),
            }
            worst = match (worst, state) {
                (_, "problem") | ("problem", _) => "problem",
                (_, "warning") | ("warning", _) => "warning",
                _ => "ok",
            };
        }
        ensure!(shown["state"] == worst, "{shown}");
        let expected = BTreeMap::from([("ok", 0), ("warning", 1), ("problem", 2)])[worst];
        ensure!(code == expected, "exit code {code}: {shown}");
        Ok(Self { code, shown })
    }

    fn checks(&self) -> impl Iterator<Item = &Value> {
        self.shown["checks"].as_array().into_iter().flatten()
    }

    /// Area and name of what is in a state, but for what is usual where tests run.
    pub(crate) fn in_state(&self, state: &str) -> Vec<String> {
        let all = self.checks().filter(|check| check["state"] == state);
        let names = all.map(|check| {
            let part = |key: &str| check[key].as_str().unwrap_or_default();
            format!("{}/{}", part("area"), part("name"))
        });
        names
            .filter(|name| !USUAL.contains(&name.as_str()))
            .collect()
    }

    /// Nothing is wrong that is not usual.
    pub(crate) fn is_well(&self) -> anyhow::Result<()> {
        let (problems, warnings) = (self.in_state("problem"), self.in_state("warning"));
        ensure!(problems.is_empty() && warnings.is_empty(), "{}", self.shown);
        ensure!(self.code <= 1, "{}", self.code);
        Ok(())
    }

    /// These are problems and nothing else is, and this is among what is said of the first.
    pub(crate) fn has_problems(&self, names: &[&str], said: &str) -> anyhow::Result<()> {
        let (mut found, mut expected) = (self.in_state("problem"), names.to_vec());
        found.sort();
        expected.sort_unstable();
        ensure!(found == expected, "{expected:?}: {:#}", self.shown);
        self.says(names[0], said)
    }

    /// A check says this.
    pub(crate) fn says(&self, name: &str, said: &str) -> anyhow::Result<()> {
        let (area, name) = name.split_once('/').context("no area")?;
        let mut of_it = self
            .checks()
            .filter(|it| it["area"] == area && it["name"] == name);
        let is_said = of_it.any(|check| {
            let text = format!("{} {}", check["says"], check["advice"]);
            text.contains(said)
        });
        ensure!(is_said, "`{said}` is not said of {name}: {:#}", self.shown);
        Ok(())
    }
}

/// Servers without daemons, and the ways to them.
pub(crate) struct Servers {
    pub(crate) to_database: Proxy,
    pub(crate) to_broker: Proxy,
    pub(crate) database: Database,
    pub(crate) broker: Broker,
    pub(crate) folder: TempDir,
    env: BTreeMap<String, String>,
}

impl Servers {
    pub(crate) async fn create() -> anyhow::Result<Self> {
        let (database, broker) = tokio::try_join!(Database::create(), Broker::create())?;
        let to_database = Proxy::start(database.url()).await?;
        let to_broker = Proxy::start(broker.url()).await?;
        let settings = [
            ("database.url", to_database.url(database.url())?),
            ("broker.url", to_broker.url(broker.url())?),
            ("broker.prefix", broker.prefix().to_owned()),
            ("cluster.partitions", "2".to_owned()),
            ("worker.allow_root", "true".to_owned()),
        ];
        let settings = settings.into_iter().filter(|(_, value)| !value.is_empty());
        Ok(Self {
            env: settings
                .map(|(key, value)| (variable(key), value))
                .collect(),
            folder: tempfile::Builder::new().prefix("attune-it-").tempdir()?,
            to_database,
            to_broker,
            database,
            broker,
        })
    }

    /// Runs a command to its end: its exit code, stdout and stderr.
    pub(crate) async fn run(
        &self,
        args: &[&str],
        env: &[(String, String)],
    ) -> anyhow::Result<(i32, String, String)> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_attune"));
        command
            .args(args)
            .env_clear()
            .envs(&self.env)
            .envs(env.iter().cloned())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .current_dir(self.folder.path());
        let output = within(&format!("the end of {args:?}"), command.output()).await??;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let code = output.status.code().context("it was killed")?;
        Ok((code, text(output.stdout), text(output.stderr)))
    }

    pub(crate) async fn doctor(&self, more: &[&str]) -> anyhow::Result<Report> {
        let args = [&["doctor", "--json"], more].concat();
        Report::of(self.run(&args, &[]).await?)
    }

    /// Likewise, with one setting that is another.
    pub(crate) async fn with(&self, key: &str, value: &str) -> anyhow::Result<Report> {
        self.doctor(&["--set", &format!("{key}={value}")]).await
    }

    /// Does something on the database.
    pub(crate) async fn execute(&self, statement: &str) -> anyhow::Result<()> {
        let mut sql = self.database.connect().await?;
        let statement = AssertSqlSafe(statement.to_owned());
        sqlx::raw_sql(statement).execute(&mut sql).await?;
        Ok(())
    }

    pub(crate) async fn must(&self, args: &[&str]) -> anyhow::Result<()> {
        let (code, _, err) = self.run(args, &[]).await?;
        ensure!(code == 0, "{args:?}: {err}");
        Ok(())
    }
}
