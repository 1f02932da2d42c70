//! Policy documents: applied, in force, kept by whoever takes over, and taken back.

use anyhow::{Context as _, ensure};
use attune_testkit::{System, Wiring, wait_for};
use serde_json::{Value, json};

use crate::histories::promises_are_kept;
use crate::support::{limited, noop, on_both_wirings};

on_both_wirings! {
    inherited => embedded_documents_are_inherited, cluster_documents_are_inherited;
}

const REF: &str = "doc.paid";

async fn attune(system: &System, code: i32, args: &[&str]) -> anyhow::Result<String> {
    let (found, stdout, stderr) = system.client(args).await?;
    ensure!(
        found == code,
        "{args:?} ended with {found}: {stdout}{stderr}"
    );
    Ok(format!("{stdout}{stderr}"))
}

/// Asks for it until it is in force: an executor may just be starting.
async fn policy(system: &System, args: &[&str]) -> anyhow::Result<Value> {
    let args: Vec<&str> = ["policy"].iter().chain(args).copied().collect();
    wait_for("documents that are in force", async || {
        let text = attune(system, 0, &[&args[..], &["--json"]].concat()).await?;
        let applied: Value = serde_json::from_str(&text)?;
        ensure!(applied["applied"] == "now", "{applied}");
        Ok(applied)
    })
    .await
}

/// Submits for a user, and tells which priority it has.
async fn priority_of(system: &System, user: &str, asked: &[&str]) -> anyhow::Result<Value> {
    let args = ["submit", REF, "--json", "--user", user];
    let text = attune(system, 0, &[&args[..], asked].concat()).await?;
    let submitted: Value = serde_json::from_str(&text)?;
    Ok(submitted["priority"].clone())
}

/// What a pack and users have holds at once for what comes, also under whoever takes over; what cannot be is
/// refused, and what is taken back holds no more.
async fn inherited(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    api.apply(&limited(REF, &noop(), 1)).await?;
    // What comes waits, also for who takes over.
    attune(system, 0, &["queues", "pause", REF]).await?;
    let folder = tempfile::tempdir()?;
    let file = |name: &str, text: &str| -> anyhow::Result<String> {
        let path = folder.path().join(name);
        std::fs::write(&path, text)?;
        Ok(path.to_str().context("a path")?.to_owned())
    };
    let documents = file(
        "documents.yaml",
        "scope: pack\ntarget: doc\naction_defaults:\n  queue: {max_length: 3}\n  priority:\n    \
         default: low\n    rules: [{when: {user.tier: gold}, then: high}]\n---\n\
         scope: user\ntarget: ann\ntier: gold\n---\n\
         scope: user\ntarget: '*'\npolicy: {priority: {max: normal}}\n",
    )?;
    let diff = ["policy", "diff", &documents];
    let differs = attune(system, 1, &diff).await?;
    ensure!(
        differs.contains("action_defaults.queue.max_length") && differs.contains("user"),
        "{differs}"
    );
    policy(
        system,
        &[
            "apply",
            &documents,
            "--reason",
            "a new season",
            "--who",
            "ann",
        ],
    )
    .await?;
    let same = attune(system, 0, &diff).await?;
    ensure!(same.contains("nothing to change: 3 of 3"), "{same}");
    let given = [
        priority_of(system, "ann", &[]).await?,
        priority_of(system, "bob", &["--priority", "critical"]).await?,
        priority_of(system, "bob", &[]).await?,
    ];
    ensure!(given == ["high", "normal", "low"], "{given:?}");
    let full = attune(system, 2, &["submit", REF]).await?;
    ensure!(full.contains("max length: 3"), "{full}");

    system.crash(owner_of(system)).await?;
    api.until_ready().await?;
    let full = attune(system, 2, &["submit", REF, "--user", "ann"]).await?;
    ensure!(full.contains("max length: 3"), "{full}");
    let shown = attune(system, 0, &["policy", "show", "pack", "doc"]).await?;
    ensure!(shown.contains("in force in 4 of 4 partitions"), "{shown}");
    ensure!(shown.contains("a new season"), "{shown}");

    // Priorities count for nothing in it: it cannot inherit them.
    let mut strict = limited("doc.strict", &noop(), 1);
    strict["policy"]["queue"] = json!({"ordering": "fifo"});
    let refused = file("strict.json", &strict.to_string())?;
    let said = attune(system, 2, &["action", "apply", &refused]).await?;
    ensure!(
        said.contains("doc.strict") && said.contains("priority.default"),
        "{said}"
    );

    policy(system, &["remove", "pack", "doc"]).await?;
    let gone = attune(system, 2, &["policy", "remove", "pack", "doc"]).await?;
    ensure!(gone.contains("no policy document of pack"), "{gone}");
    let between = ["policy", "diff", "--from", "1", "pack", "doc", "--json"];
    let between: Value = serde_json::from_str(&attune(system, 1, &between).await?)?;
    ensure!(
        between["differences"][0]["result"] == "removed",
        "{between}"
    );
    let bad = ["policy", "diff", "--from", "1", "--to", "9", "pack", "doc"];
    let bad = attune(system, 2, &bad).await?;
    ensure!(bad.contains("no version 9"), "{bad}");
    let last = priority_of(system, "ann", &[]).await?;
    ensure!(last == "normal", "{last}");
    let history = attune(system, 0, &["policy", "history", "pack", "doc"]).await?;
    ensure!(history.contains("removed"), "{history}");
    let waiting = api.executions(REF).await?;
    let id = waiting[0]["id"].to_string();
    let why: Value = serde_json::from_str(&attune(system, 0, &["explain", &id, "--json"]).await?)?;
    ensure!(why["policy_version"] == 2, "{why}");
    attune(system, 0, &["queues", "resume", REF]).await?;
    let executions = api.until_idle(REF).await?;
    promises_are_kept(system, &executions).await?;
    Ok(())
}

fn owner_of(system: &System) -> &'static str {
    match system.wiring() {
        Wiring::Embedded => "standalone",
        Wiring::Cluster => "executor",
    }
}
