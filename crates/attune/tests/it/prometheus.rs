//! What is exported, as Prometheus sees it: a real one asks a running system, and every query that is
//! shipped or promised must be answered from metrics that exist.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, bail, ensure};
use attune_testkit::{Api, Gate, System, Wiring, wait_for};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::support::{limited, noop, run, setup};

/// What users' dashboards ask for; to the letter.
const PROMISED: [&str; 3] = [
    "queue_depth",
    "rate(queue_schedule_total[5m])",
    "histogram_quantile(0.95, rate(queue_wait_time_bucket[5m]))",
];

/// Something that each role must show of its own, and every process of itself.
const OF_ROLES: [&str; 15] = [
    "queue_wait_time_bucket",
    "executor_handoff_seconds_bucket",
    "executor_commit_seconds_bucket",
    "executor_lease_remaining_seconds",
    "worker_run_seconds_bucket",
    "worker_runs_ended_total",
    "worker_lease_renew_seconds_bucket",
    "completion_listener_received_total",
    "stats_writes_total",
    "dead_letters_total",
    "api_request_seconds_bucket",
    "store_pool_size",
    "bus_publish_seconds_bucket",
    "process_resident_memory_bytes",
    "attune_build_info",
];

/// What only a cluster shows: SQLite keeps its history in one table.
const OF_POSTGRES: &str = "store_history_days_ahead";

/// What only an API with a certificate shows.
const OF_TLS: &str = "tls_certificate_expiry_seconds";

/// What only a process shows whose user of the broker lacks a right.
const OF_RIGHTS: &str = "bus_forbidden_total";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The alerts that are shipped: their names and expressions.
fn alerts() -> anyhow::Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(root().join("config/prometheus/attune-alerts.yaml"))?;
    let mut alerts: Vec<(String, String)> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let line = line.trim_start();
        if let Some(name) = line.strip_prefix("- alert: ") {
            alerts.push((name.to_owned(), String::new()));
        } else if let Some(expression) = line.strip_prefix("expr: ") {
            let (_, query) = alerts
                .last_mut()
                .context("an expression without an alert")?;
            *query = expression.trim_start_matches('|').to_owned();
            // A block: what is indented further.
            while let Some(more) = lines.next_if(|more| more.starts_with("          ")) {
                query.push_str(more);
                query.push('\n');
            }
        }
    }
    ensure!(!alerts.is_empty(), "there are no alerts");
    Ok(alerts)
}

/// The queries of the dashboard, with the titles of their panels.
fn panels() -> anyhow::Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(root().join("config/grafana/attune.json"))?;
    let dashboard: Value = serde_json::from_str(&text)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let queries = panels.iter().flat_map(|panel| {
        let title = panel["title"].as_str().unwrap_or_default().to_owned();
        let targets = panel["targets"].as_array().into_iter().flatten();
        targets.map(move |target| {
            let query = target["expr"].as_str().unwrap_or_default();
            (title.clone(), query.to_owned())
        })
    });
    let queries: Vec<_> = queries.collect();
    ensure!(queries.len() > 50, "{} queries", queries.len());
    Ok(queries)
}

/// The names of metrics that a query mentions: words with `_` that are no label, no function, and no
/// keyword. `up` is of Prometheus itself.
fn metrics_in(query: &str) -> BTreeSet<String> {
    const WORDS: [&str; 6] = [
        "histogram_quantile",
        "group_left",
        "group_right",
        "label_replace",
        "count_values",
        "sort_desc",
    ];
    let mut names = BTreeSet::new();
    let mut rest = query;
    while let Some(start) = rest.find(|letter: char| letter.is_ascii_alphabetic()) {
        rest = &rest[start..];
        let end = rest.find(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        if word.contains('_') && !WORDS.contains(&word) {
            names.insert(word.to_owned());
        }
        rest = match after.strip_prefix('{') {
            Some(labels) => labels.split_once('}').map_or("", |(_, rest)| rest),
            None => after,
        };
    }
    names
}

/// The path that asks for a query.
fn asked(query: &str) -> String {
    let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    format!("/api/v1/query?query={escaped}")
}

/// A Prometheus of this test's own; it ends with it.
struct Prometheus {
    api: Api,
    _process: Child,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts one that asks `targets`, with the alerts that are shipped.
    async fn start(targets: &[String]) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("attune-it-").tempdir()?;
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [root().canonicalize()?.join("config/prometheus/attune-alerts.yaml")],
            "scrape_configs": [{"job_name": "attune", "static_configs": [{"targets": targets}]}],
        });
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, config.to_string())?;
        let place = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={place}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(folder.path().join("log"))?)
            .kill_on_drop(true)
            .spawn()
            .context("prometheus cannot be started; scripts/services install prometheus")?;
        let api = Api::new(format!("http://{place}"))?;
        wait_for("a Prometheus", async || {
            api.get("/-/ready").await?;
            Ok(())
        })
        .await?;
        Ok(Self {
            api,
            _process: process,
            _folder: folder,
        })
    }

    /// What a query gives.
    async fn ask(&self, query: &str) -> anyhow::Result<Vec<Value>> {
        let answer = self.api.get(&asked(query)).await?;
        ensure!(
            answer.status == 200 && answer.body["status"] == "success",
            "{query}: {answer:?}"
        );
        match &answer.body["data"]["result"] {
            Value::Array(series) => Ok(series.clone()),
            other => bail!("{query}: {other}"),
        }
    }

    /// The names of all metrics that it has seen.
    async fn names(&self) -> anyhow::Result<BTreeSet<String>> {
        let answer = self.api.get("/api/v1/label/__name__/values").await?;
        let names = answer.body["data"].as_array().context("no names")?;
        let names = names.iter().filter_map(Value::as_str);
        Ok(names.map(str::to_owned).collect())
    }
}

/// Something of everything: executions that have run and one that waits, by two priorities.
async fn work(system: &System) -> anyhow::Result<Gate> {
    let api = &system.api;
    let gate = Gate::open().await?;
    api.apply(&limited("it.busy", &gate.run(), 1)).await?;
    api.apply(&limited("it.batch", &noop(), 5)).await?;
    for _ in 0..2 {
        api.submit("it.busy", json!({})).await?;
    }
    api.submit_batch("it.batch", (0..40).map(|number| json!({"number": number})))
        .await?;
    api.until_idle("it.batch").await?;
    Ok(gate)
}

/// Every query that is promised or shipped is answered, and names nothing that nobody exports.
async fn queries(system: &System) -> anyhow::Result<()> {
    let mut gate = work(system).await?;
    let first = gate.next().await?;
    let targets = targets(system).await?;
    let prometheus = Prometheus::start(&targets).await?;
    wait_for("all targets", async || {
        let up = prometheus.ask("sum(up)").await?;
        ensure!(value(&up)? == targets.len() as f64, "{up:?}");
        Ok(())
    })
    .await?;
    // A rate needs two looks, and something between them.
    system
        .api
        .submit_batch("it.batch", (0..40).map(|_| json!({})))
        .await?;
    system.api.until_idle("it.batch").await?;
    wait_for("rates", async || {
        for query in PROMISED {
            let series = prometheus.ask(query).await?;
            ensure!(!series.is_empty(), "{query} gives nothing");
        }
        let rate = prometheus
            .ask("sum(rate(queue_schedule_total[5m]))")
            .await?;
        ensure!(value(&rate)? > 0.0, "{rate:?}");
        Ok(())
    })
    .await?;
    // What it has seen last may be older than what was done.
    wait_for("the figures of what was done", async || {
        for (query, expected) in [
            ("queue_depth{action=\"it.busy\"}", 1.0),
            (
                "sum(queue_wait_time_count{priority=\"normal\"}) >= bool 81",
                1.0,
            ),
            ("queue_waits{action=\"it.busy\",for=\"limit\"}", 1.0),
        ] {
            let series = prometheus.ask(query).await?;
            ensure!(value(&series)? == expected, "{query}: {series:?}");
        }
        Ok(())
    })
    .await?;
    for target in &targets {
        every_figure_has_words(target).await?;
    }
    wait_for("an answer to every query", async || {
        all_is_exported(&prometheus, targets.len() == 1).await
    })
    .await?;
    // Nothing is wrong, so nobody is woken.
    let firing = prometheus
        .ask("ALERTS{alertstate=\"firing\",severity=\"page\"}")
        .await?;
    ensure!(firing.is_empty(), "{firing:#?}");
    first.leave(0).await?;
    gate.next().await?.leave(0).await?;
    system.api.until_idle("it.busy").await?;
    Ok(())
}

/// Every query that is promised or shipped can be answered, and names only what somebody exports.
async fn all_is_exported(prometheus: &Prometheus, is_embedded: bool) -> anyhow::Result<()> {
    let names = prometheus.names().await?;
    for name in OF_ROLES {
        ensure!(names.contains(name), "no role shows {name}");
    }
    let shipped = alerts()?.into_iter().chain(panels()?);
    let promised = PROMISED.map(|query| ("promised".to_owned(), query.to_owned()));
    let mut missing = BTreeSet::new();
    for (what, query) in shipped.chain(promised) {
        prometheus
            .ask_any(&query)
            .await
            .with_context(|| what.clone())?;
        for name in metrics_in(&query) {
            let is_elsewhere = is_embedded && name == OF_POSTGRES;
            if !names.contains(&name) && !is_elsewhere && name != OF_TLS && name != OF_RIGHTS {
                missing.insert(format!("{what}: {name}"));
            }
        }
    }
    ensure!(missing.is_empty(), "nobody exports: {missing:#?}");
    Ok(())
}

/// Every family that a process shows says in words what it is, and the process says what it is.
async fn every_figure_has_words(target: &str) -> anyhow::Result<()> {
    let text = Api::new(format!("http://{target}"))?.metrics().await?;
    let families = |mark: &str| -> BTreeSet<String> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(mark));
        let names = lines.filter_map(|line| line.split_once(' '));
        let described = names.filter(|(_, words)| !words.trim().is_empty());
        described.map(|(name, _)| name.to_owned()).collect()
    };
    let (shown, described) = (families("# TYPE "), families("# HELP "));
    ensure!(!shown.is_empty(), "{target} shows nothing");
    let wordless: Vec<_> = shown.difference(&described).collect();
    ensure!(wordless.is_empty(), "{target}: {wordless:?}");
    for own in [
        "attune_build_info",
        "process_cpu_seconds_total",
        "bus_up",
        "store_calls_total",
    ] {
        ensure!(shown.contains(own), "{target} does not show {own}");
    }
    Ok(())
}

/// Where the metrics of a system's processes are.
async fn targets(system: &System) -> anyhow::Result<Vec<String>> {
    let mark = "serving /healthz, /readyz and /metrics server.address=";
    let mut targets = Vec::new();
    for name in system.names().await {
        let address = system.announced(&name, mark).await;
        targets.push(
            address
                .with_context(|| format!("{name} has no probes"))?
                .to_string(),
        );
    }
    Ok(targets)
}

/// The one number of an answer.
fn value(series: &[Value]) -> anyhow::Result<f64> {
    ensure!(series.len() == 1, "one series was expected: {series:?}");
    let number = series[0]["value"][1].as_str().context("no value")?;
    Ok(number.parse()?)
}

impl Prometheus {
    /// Whether a query can be answered, by whatever.
    async fn ask_any(&self, query: &str) -> anyhow::Result<()> {
        let answer = self.api.get(&asked(query)).await?;
        ensure!(answer.status == 200, "{query}: {answer:?}");
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_every_query_is_answered() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), queries).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_every_query_is_answered() -> anyhow::Result<()> {
    run(setup(Wiring::Embedded), queries).await
}

/// Each alert has its page, which says what it means, what to look at and what to do; and there is no page
/// without an alert.
#[test]
fn every_alert_has_a_page() -> anyhow::Result<()> {
    let folder = root().join("docs/runbook");
    let mut pages = BTreeSet::new();
    for entry in std::fs::read_dir(&folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        pages.insert(name.trim_end_matches(".md").to_owned());
    }
    let alerts: BTreeSet<String> = alerts()?.into_iter().map(|(name, _)| name).collect();
    ensure!(alerts == pages, "{alerts:?} are not {pages:?}");
    for name in &alerts {
        let page = std::fs::read_to_string(folder.join(format!("{name}.md")))?;
        for part in ["## What it means", "## What to look at", "## What to do"] {
            let (_, rest) = page
                .split_once(part)
                .with_context(|| format!("{name} lacks `{part}`"))?;
            ensure!(rest.trim().len() > 40, "{name}: `{part}` says nothing");
        }
        ensure!(
            page.starts_with(&format!("# {name}\n")),
            "{name} has another title"
        );
    }
    Ok(())
}

/// The rules fire when they should, and not otherwise: config/prometheus/tests.
#[test]
fn the_rules_do_what_they_say() -> anyhow::Result<()> {
    let folder = root().join("config/prometheus/tests");
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        files.push(entry?.path());
    }
    let tests = std::process::Command::new("promtool")
        .args(["test", "rules"])
        .args(&files)
        .output()
        .context("promtool is missing; scripts/services install prometheus")?;
    ensure!(
        tests.status.success(),
        "{}",
        String::from_utf8_lossy(&tests.stderr)
    );
    Ok(())
}
