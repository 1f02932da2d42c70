//! Canaries: values that are secret, sent in on every way, echoed by the program, and then looked for in everything
//! that Attune has written and answers.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use attune_bus::Topic;
use attune_testkit::{System, Wiring, wait_for};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt as _;
use lapin::options::{BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row as _};

use crate::dead_letters::list;
use crate::stranger::{self, envelope, publish};
use crate::support::{ids, number, run, setup};

const REF: &str = "it.secret";
/// A parameter of what is asked for over HTTP.
const PARAMETER: &str = "canary-parameter-8c1d";
/// What the worker has and a variable of the action names.
const OF_WORKER: &str = "canary-of-worker-2f9e";
/// A parameter of a rule firing.
const FIRING: &str = "canary-of-firing-71ab";
/// A parameter of what is refused.
const REFUSED: &str = "canary-of-refused-is-longer-than-it-may-be-0d44";
/// A parameter of a firing for an action that is not there.
const LETTER: &str = "canary-of-letter-b3c7";
const ALL: [&str; 5] = [PARAMETER, OF_WORKER, FIRING, REFUSED, LETTER];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_with_a_key_no_secret_is_anywhere() -> anyhow::Result<()> {
    with(Wiring::Embedded, true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_with_a_key_no_secret_is_anywhere() -> anyhow::Result<()> {
    with(Wiring::Cluster, true).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_without_a_key_parameters_are_stored_and_nothing_else() -> anyhow::Result<()> {
    with(Wiring::Embedded, false).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_without_a_key_parameters_are_stored_and_nothing_else() -> anyhow::Result<()> {
    with(Wiring::Cluster, false).await
}

async fn with(wiring: Wiring, has_key: bool) -> anyhow::Result<()> {
    // Beside the folder of the system, all of which is searched.
    let own = tempfile::Builder::new().prefix("attune-own-").tempdir()?;
    let dir = own.path().join("secrets");
    std::fs::create_dir(&dir)?;
    private(&dir.join("token"), &format!("{OF_WORKER}\n"))?;
    let mut setup = setup(wiring).set("worker.secrets_dir", &dir.to_string_lossy());
    if has_key {
        let file = own.path().join("keys");
        private(&file, &new_key().await?)?;
        setup = setup.set("secrets.key_file", &file.to_string_lossy());
    }
    run(setup, async |system| {
        scenario(system, own.path(), has_key).await
    })
    .await
}

pub(crate) fn private(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text)?;
    Ok(std::fs::set_permissions(
        path,
        Permissions::from_mode(0o600),
    )?)
}

pub(crate) async fn new_key() -> anyhow::Result<String> {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_attune"));
    let output = command.args(["secrets", "new-key"]).output().await?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

fn action(gate: &Path) -> Value {
    let script =
        "cat; echo; echo \"$TOKEN\"; cat \"$ATTUNE_PARAMETERS_FILE\" >&2; echo \"[$TOKEN]\" >&2
                  printf %s \"$TOKEN\" | wc -c >&2
                  until [ -e \"$GATE\" ]; do sleep 0.05; done"; // poll
    json!({
        "ref": REF, "run": {"program": ["/bin/sh", "-c", script]},
        "env": {"TOKEN": {"secret": "token"}, "GATE": gate},
        "parameters": {"properties": {
            "name": {"type": "string"},
            "password": {"type": "string", "maxLength": 40, "secret": true},
        }},
    })
}

async fn scenario(system: &System, own: &Path, has_key: bool) -> anyhow::Result<()> {
    let api = &system.api;
    let gate = own.join("gate");
    api.apply(&action(&gate)).await?;
    let mut tap = Tap::open(system).await?;

    let given = json!({"name": "n", "password": PARAMETER});
    let id = api.submit(REF, given.clone()).await?.id;
    api.until(id, "running").await?;
    ensure!(in_command_lines()?.is_empty(), "{:?}", in_command_lines()?);
    let explained = api.get(&format!("/api/v1/executions/{id}/explain")).await?;
    clean("an explanation", &format!("{explained:?}"))?;
    std::fs::write(&gate, "")?;
    let ended = api.until(id, "succeeded").await?;
    let masked = json!({"name": "n", "password": "********"});
    ensure!(ended["parameters"] == masked, "{ended}");
    let length = OF_WORKER.len();
    for (part, expected) in [
        ("stdout", format!("{masked}\n********\n")),
        ("stderr", format!("{masked}[********]\n{length}\n")),
    ] {
        ensure!(ended[part] == expected, "{part}: {ended}");
    }

    let wrong = json!({"action_ref": REF, "parameters": {"password": REFUSED}});
    let refused = api.try_submit(&wrong).await?;
    let refused = refused.refused(422, "INVALID_INPUT")?;
    ensure!(
        refused.to_string().contains("parameters.password"),
        "{refused}"
    );
    clean("a refusal", &refused.to_string())?;

    let resubmit = format!("/api/v1/executions/{id}/resubmit");
    let again = api.post(&resubmit, &json!({})).await?.expect(201)?;
    let again = api.until(number(&again, "id")?, "succeeded").await?;
    ensure!(again["parameters"] == masked, "{again}");
    if system.wiring() == Wiring::Cluster {
        firings(system).await?;
    }
    with_right(system, id).await?;

    answers(system).await?;
    let found = stored(system).await?;
    let expected = expected(system.wiring(), has_key);
    ensure!(
        found == expected,
        "found in {found:?}, expected in {expected:?}"
    );
    let on_wire = tap.read().await?;
    // A firing is on its way as it was sent.
    let kinds: &[&str] = match (system.wiring(), has_key) {
        (Wiring::Embedded, _) => &[],
        (Wiring::Cluster, true) => &["enforcement.created", "partition.submit"],
        (Wiring::Cluster, false) => &[
            "enforcement.created",
            "execution.requested",
            "partition.submit",
        ],
    };
    let expected: BTreeSet<String> = kinds.iter().map(|kind| (*kind).to_owned()).collect();
    ensure!(on_wire == expected, "on the wire in {on_wire:?}");
    Ok(())
}

/// Rule firings come as their senders sent them; of what is marked nothing of them is written down.
async fn firings(system: &System) -> anyhow::Result<()> {
    let (api, bus) = (&system.api, stranger::connect(system).await?);
    let firing = |action: &str, secret: &str| {
        let payload = json!({"action_ref": action, "parameters": {"password": secret}});
        envelope("enforcement.created", 1, &payload)
    };
    publish(&bus, &Topic::Enforcements, firing(REF, FIRING)).await?;
    let ran = wait_for("the firing's execution", async || {
        let executions = api.until_idle(REF).await?;
        ensure!(executions.len() == 3, "{}", executions.len());
        Ok(executions)
    });
    let newest = ids(&ran.await?)?.into_iter().max().context("none")?;
    let newest = api.until(newest, "succeeded").await?;
    ensure!(
        newest["parameters"] == json!({"password": "********"}),
        "{newest}"
    );

    publish(&bus, &Topic::Enforcements, firing("it.nobody", LETTER)).await?;
    // A sealed value from outside is nobody's to send.
    let forged = firing(REF, "attune:secret:v1::ImNhbmFyeSI");
    publish(&bus, &Topic::Enforcements, forged).await?;
    wait_for("the letters", async || {
        let letters = list(system, "enforcement.created").await?;
        ensure!(letters.len() == 2, "{letters:?}");
        Ok(())
    })
    .await?;
    let letters = api
        .get("/api/v1/dead-letters?include=body")
        .await?
        .expect(200)?;
    clean("dead letters", &letters.to_string())?;
    ensure!(letters.to_string().contains("it.nobody"), "{letters}");
    Ok(())
}

/// Who may see them does, and that is written down.
async fn with_right(system: &System, id: i64) -> anyhow::Result<()> {
    let line = [
        "executions",
        "show",
        &id.to_string(),
        "--show-secrets",
        "--json",
    ];
    let (code, stdout, stderr) = system.client(&line).await?;
    ensure!(code == 0 && stdout.contains(PARAMETER), "{stdout}{stderr}");
    let log = system.api.get("/api/v1/audit-log").await?.expect(200)?;
    let entries = log["entries"].as_array().context("no entries")?;
    let target = id.to_string();
    let noted = entries
        .iter()
        .any(|entry| entry["what"] == "secret.read" && entry["target"] == target);
    ensure!(noted, "{log}");
    let (_, shown, _) = system
        .client(&["executions", "show", &id.to_string()])
        .await?;
    ensure!(shown.contains("********"), "{shown}");
    clean("what is shown", &shown)
}

fn clean(what: &str, text: &str) -> anyhow::Result<()> {
    for canary in ALL {
        ensure!(!text.contains(canary), "{canary} in {what}: {text}");
    }
    Ok(())
}

async fn answers(system: &System) -> anyhow::Result<()> {
    for path in [
        "/api/v1/executions?include=parameters,result,stdout,stderr",
        "/api/v1/admin/executions/",
        "/api/v1/actions?include=parameters,env",
        "/api/v1/dead-letters?include=body",
        "/api/v1/audit-log",
        "/api/v1/queue-stats",
        "/api/v1/cluster",
        "/metrics",
    ] {
        let answer = system.api.get(path).await?;
        ensure!(answer.status == 200, "{path}: {answer:?}");
        clean(path, &format!("{answer:?}"))?;
    }
    Ok(())
}

fn in_command_lines() -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc")? {
        let line = std::fs::read(process?.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        found.extend(
            ALL.iter()
                .any(|canary| line.contains(canary))
                .then_some(line),
        );
    }
    Ok(found)
}

/// The ways in which a canary may stand somewhere: as it is, and as marked without a key; and both in hexadecimal.
fn forms() -> Vec<Vec<u8>> {
    let marked = ALL.map(|canary| URL_SAFE_NO_PAD.encode(format!("\"{canary}\"")));
    let texts = ALL.map(str::to_owned).into_iter().chain(marked);
    texts
        .flat_map(|text| {
            let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
            [text.into_bytes(), hex.into_bytes()]
        })
        .collect()
}

fn has_canary(bytes: &[u8]) -> bool {
    let is_in = |form: &Vec<u8>| bytes.windows(form.len()).any(|window| window == form);
    forms().iter().any(is_in)
}

/// Where canaries are stored: logs, histories, files of runs and of data, tables.
async fn stored(system: &System) -> anyhow::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut folders = vec![system.folder().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() && has_canary(&std::fs::read(entry.path())?) {
                let name = entry.file_name().to_string_lossy().into_owned();
                found.insert(name.trim_end_matches("-wal").to_owned());
            }
        }
    }
    if system.wiring() == Wiring::Cluster {
        let mut sql = system.database()?.connect().await?;
        let tables = "SELECT c.oid::regclass::text AS name FROM pg_class c
            JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = 'attune' AND c.relkind = 'r'";
        for table in sqlx::query(tables).fetch_all(&mut sql).await? {
            let name: String = table.try_get("name")?;
            let rows = AssertSqlSafe(format!("SELECT row_to_json(t)::text AS row FROM {name} t"));
            for row in sqlx::query(rows).fetch_all(&mut sql).await? {
                if has_canary(row.try_get::<String, _>("row")?.as_bytes()) {
                    let kind = name.trim_end_matches(|it: char| it.is_ascii_digit() || it == '_');
                    found.insert(kind.to_owned());
                }
            }
        }
    }
    Ok(found)
}

/// With a key nowhere. Without one where docs/SECURITY.md says.
fn expected(wiring: Wiring, has_key: bool) -> BTreeSet<String> {
    let places: &[&str] = match (wiring, has_key) {
        (_, true) => &[],
        (Wiring::Embedded, false) => &["attune.db"],
        (Wiring::Cluster, false) => &["dead_letter", "execution_history"],
    };
    places.iter().map(|place| (*place).to_owned()).collect()
}

/// Hears everything that parts of a cluster say to each other.
struct Tap {
    heard: Option<(lapin::Connection, lapin::Consumer)>,
}

impl Tap {
    async fn open(system: &System) -> anyhow::Result<Self> {
        if system.wiring() == Wiring::Embedded {
            return Ok(Self { heard: None });
        }
        let broker = system.broker()?;
        let options = lapin::ConnectionProperties::default();
        let connection = lapin::Connection::connect(broker.url(), options).await?;
        let channel = connection.create_channel().await?;
        let own = QueueDeclareOptions {
            exclusive: true,
            auto_delete: true,
            ..QueueDeclareOptions::default()
        };
        let queue = channel
            .queue_declare("".into(), own, FieldTable::default())
            .await?;
        for exchange in ["executions", "lives"] {
            let exchange = format!("{}attune.{exchange}", broker.prefix());
            let (queue, bind) = (queue.name().clone(), QueueBindOptions::default());
            let (every, none) = ("#".into(), FieldTable::default());
            channel
                .queue_bind(queue, exchange.into(), every, bind, none)
                .await?;
        }
        let consumer = channel
            .basic_consume(
                queue.name().clone(),
                "tap".into(),
                BasicConsumeOptions {
                    no_ack: true,
                    ..BasicConsumeOptions::default()
                },
                FieldTable::default(),
            )
            .await?;
        Ok(Self {
            heard: Some((connection, consumer)),
        })
    }

    /// In which kinds of messages there were canaries.
    async fn read(&mut self) -> anyhow::Result<BTreeSet<String>> {
        let mut found = BTreeSet::new();
        let Some((_, consumer)) = &mut self.heard else {
            return Ok(found);
        };
        let quiet = std::time::Duration::from_secs(1);
        let mut heard = 0;
        while let Ok(Some(delivery)) = tokio::time::timeout(quiet, consumer.next()).await {
            let body = delivery?.data;
            heard += 1;
            if has_canary(&body) {
                let message: Value = serde_json::from_slice(&body)?;
                found.insert(message["message_type"].to_string().replace('"', ""));
            }
            if heard > 10_000 {
                break;
            }
        }
        ensure!(heard > 0, "nothing was heard");
        Ok(found)
    }
}
