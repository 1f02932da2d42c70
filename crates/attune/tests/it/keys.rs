//! Keys: who is let in, as whom, and what they may do, with real processes on both wirings.

use anyhow::{Context as _, ensure};
use attune_testkit::{Api, Setup, System, Wiring, wait_for};
use serde_json::{Value, json};

use crate::support::{run, setup};

/// Makes a key by the API of whoever may; gives it whole.
async fn make(api: &Api, asked: &Value) -> anyhow::Result<(String, Api)> {
    let made = api.post("/api/v1/keys", asked).await?.expect(201)?;
    let key = made["key"].as_str().context("no key")?.to_owned();
    let id = made["id"].as_str().context("no id")?.to_owned();
    Ok((id, api.with_key(key)))
}

async fn clients(system: &System) -> anyhow::Result<()> {
    let admin = &system.api;
    let nobody = Api::new(admin.base())?;
    for path in ["/api/v1/executions", "/api/v1/queue-stats", "/metrics"] {
        nobody.get(path).await?.refused(401, "UNAUTHENTICATED")?;
    }
    nobody.get("/healthz").await?.expect(200)?;

    let (id, ann) = make(admin, &json!({"name": "ann", "roles": ["submitter"]})).await?;
    let echo = json!({"action_ref": "core.echo", "parameters": {"message": "hi"}});
    let submitted = ann.post("/api/v1/executions", &echo).await?.expect(201)?;
    let of_ann = format!("/api/v1/executions/{}", submitted["id"]);
    let done = wait_for("the end of the execution", async || {
        let shown = ann.get(&of_ann).await?.expect(200)?;
        ensure!(shown["status"] == "succeeded", "{shown}");
        Ok(shown)
    })
    .await?;
    ensure!(done["requested_by"] == "ann", "{done}");
    let for_bob = json!({"action_ref": "core.echo", "requested_by": "bob"});
    ann.post("/api/v1/executions", &for_bob)
        .await?
        .refused(403, "FORBIDDEN")?;

    // Two who name their requests alike mean two executions, and neither hears of the other's.
    let (_, bob) = make(admin, &json!({"name": "bob", "roles": ["submitter"]})).await?;
    let named =
        json!({"action_ref": "core.echo", "request_id": "0b7f7e0c-52a1-4d7a-9f0c-1c6f1f0f2a11"});
    let first = ann.post("/api/v1/executions", &named).await?.expect(201)?;
    let again = ann.post("/api/v1/executions", &named).await?.expect(200)?;
    let other = bob.post("/api/v1/executions", &named).await?.expect(201)?;
    ensure!(first["id"] == again["id"], "{first} {again}");
    ensure!(first["id"] != other["id"], "{first} {other}");
    bob.get(&of_ann).await?.refused(404, "UNKNOWN_EXECUTION")?;

    // What an operator does is written down under the name of its key, whatever is said.
    let (_, olga) = make(admin, &json!({"name": "olga", "roles": ["operator"]})).await?;
    let pause = json!({"mode": "pause", "who": "alice.admin"});
    olga.put("/api/v1/pauses/action/core.noop", &pause)
        .await?
        .expect(200)?;
    let log = olga.get("/api/v1/audit-log").await?.expect(200)?;
    ensure!(log["entries"][0]["who"] == "olga", "{log}");
    ensure!(!log.to_string().contains("alice.admin"), "{log}");
    let command = json!({"ref": "core.command", "run": {"program": ["/bin/true"]}});
    olga.put("/api/v1/actions/core.command", &command)
        .await?
        .refused(403, "FORBIDDEN")?;
    ann.post("/api/v1/keys", &json!({"name": "eve", "roles": ["admin"]}))
        .await?
        .refused(403, "FORBIDDEN")?;

    // All of that is a chain, of which a hash can be noted elsewhere.
    let (code, list, stderr) = system.client(&["audit", "list", "--what", "key."]).await?;
    ensure!(
        code == 0 && list.matches("key.create").count() >= 3,
        "{code} {list}{stderr}"
    );
    let (code, check, _) = system.client(&["audit", "verify"]).await?;
    let hash = check.lines().last().context("no hash")?;
    ensure!(code == 0 && hash.len() == 64, "{code} {check}");
    let (code, check, _) = system.client(&["audit", "verify", "--noted", hash]).await?;
    ensure!(code == 0, "{code} {check}");
    let other = "0".repeat(64);
    let (code, _, stderr) = system
        .client(&["audit", "verify", "--noted", &other])
        .await?;
    ensure!(
        code == 1 && stderr.contains("not in the chain"),
        "{code} {stderr}"
    );

    // Revoked, it is good for five seconds more at the most.
    let revoked = system.client(&["keys", "revoke", &id]).await?;
    ensure!(revoked.0 == 0, "{revoked:?}");
    wait_for("the refusal of a key that was revoked", async || {
        ann.get("/api/v1/executions")
            .await?
            .refused(401, "UNAUTHENTICATED")
    })
    .await?;
    Ok(())
}

/// The client commands, with a key and without.
async fn commands(system: &System) -> anyhow::Result<()> {
    let file = system.folder().join("ci.key");
    let file = file.to_str().context("a path without UTF-8")?;
    let create = [
        "keys",
        "create",
        "ci",
        "--role",
        "submitter",
        "--actions",
        "core.*",
        "--expires",
        "90d",
        "--out",
        file,
    ];
    let (code, stdout, stderr) = system.client(&create).await?;
    ensure!(
        code == 0 && stdout.contains("is in"),
        "{code} {stdout}{stderr}"
    );
    let key = std::fs::read_to_string(file)?;
    ensure!(!stdout.contains(key.trim()), "{stdout}");

    let (code, list, _) = system.client(&["keys", "list"]).await?;
    ensure!(
        code == 0 && list.contains("ci") && list.contains("good for"),
        "{list}"
    );
    ensure!(!list.contains(&key[17..60]), "{list}");

    // A file that is there is kept, and no key is made for it.
    let (code, _, stderr) = system.client(&create).await?;
    ensure!(
        code == 2 && stderr.contains("no key was made"),
        "{code} {stderr}"
    );
    let again = [&create[..], &["--if-missing"]].concat();
    let (code, stdout, _) = system.client(&again).await?;
    ensure!(code == 0 && stdout.contains("already"), "{code} {stdout}");

    let submit = [
        "submit",
        "core.echo",
        "-p",
        "message=hi",
        "--wait",
        "--key-file",
        file,
    ];
    let (code, stdout, stderr) = system.client(&submit).await?;
    ensure!(
        code == 0 && stdout.contains("hi"),
        "{code} {stdout}{stderr}"
    );
    let (code, _, stderr) = system.client(&["queues", "--key-file", file]).await?;
    ensure!(code == 2 && stderr.contains("`read`"), "{code} {stderr}");

    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644))?;
    let (code, _, stderr) = system.client(&submit).await?;
    ensure!(code == 2 && stderr.contains("chmod o="), "{code} {stderr}");
    let nowhere = [
        "queues",
        "--url",
        "http://192.0.2.1:8080",
        "--connect-timeout",
        "0",
    ];
    let (code, _, stderr) = system.client(&nowhere).await?;
    ensure!(
        code == 2 && stderr.contains("in the clear"),
        "{code} {stderr}"
    );

    if system.wiring() == Wiring::Cluster {
        let (code, stdout, stderr) = system
            .command(&["keys", "list", "--database", "--json"])
            .await?;
        ensure!(code == 0, "{code} {stdout}{stderr}");
        let list: Value = serde_json::from_str(&stdout)?;
        ensure!(
            list["keys"].as_array().is_some_and(|keys| keys.len() == 2),
            "{list}"
        );
    }
    Ok(())
}

async fn with_keys(
    wiring: Wiring,
    scenario: impl AsyncFnOnce(&System) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    run(Setup::keys(setup(wiring)), scenario).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_clients_are_known_by_their_keys() -> anyhow::Result<()> {
    with_keys(Wiring::Embedded, clients).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_clients_are_known_by_their_keys() -> anyhow::Result<()> {
    with_keys(Wiring::Cluster, clients).await
}

/// Only so many of a key wait, whatever others have there.
async fn bounded(system: &System) -> anyhow::Result<()> {
    let admin = &system.api;
    let spec = json!({"ref": "it.held", "run": {"builtin": "noop"}});
    admin.apply(&spec).await?;
    let pause = json!({"mode": "pause"});
    let held = "/api/v1/pauses/action/it.held";
    admin.put(held, &pause).await?.expect(200)?;
    let asked = json!({"name": "greedy", "roles": ["submitter"], "max_waiting": 3});
    let (_, greedy) = make(admin, &asked).await?;
    let one = json!({"action_ref": "it.held"});
    let batch = json!([one, one, one, one, one]);
    let answers = greedy
        .post("/api/v1/executions", &batch)
        .await?
        .expect(200)?;
    let code = |at: usize| answers[at]["error"]["code"].clone();
    ensure!(code(2).is_null(), "{answers}");
    ensure!(
        code(3) == "USER_LIMIT_REACHED" && code(4) == code(3),
        "{answers}"
    );
    let refused = greedy.post("/api/v1/executions", &one).await?;
    ensure!(refused.retry_after.is_some(), "{refused:?}");
    let words = refused.refused(429, "USER_LIMIT_REACHED")?;
    ensure!(
        words["message"].to_string().contains("max_waiting"),
        "{words}"
    );
    admin.post("/api/v1/executions", &one).await?.expect(201)?;

    let resumed = system.client(&["queues", "resume", "it.held"]).await?;
    ensure!(resumed.0 == 0, "{resumed:?}");
    wait_for("room for the key", async || {
        greedy.post("/api/v1/executions", &one).await?.expect(201)
    })
    .await?;
    let (code, stdout, stderr) = system.client(&["keys", "list"]).await?;
    ensure!(
        code == 0 && stdout.contains("greedy"),
        "{code} {stdout}{stderr}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_a_key_has_so_many_waiting() -> anyhow::Result<()> {
    with_keys(Wiring::Embedded, bounded).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_key_has_so_many_waiting() -> anyhow::Result<()> {
    with_keys(Wiring::Cluster, bounded).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_commands_show_keys() -> anyhow::Result<()> {
    with_keys(Wiring::Embedded, commands).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_commands_show_keys() -> anyhow::Result<()> {
    with_keys(Wiring::Cluster, commands).await
}
