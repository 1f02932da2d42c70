//! Bulk operations: what is done to many executions at once.

use anyhow::ensure;
use attune_testkit::{Gate, System, Wiring, wait_for};
use serde_json::{Value, json};

use crate::histories::promises_are_kept;
use crate::support::{limited, noop, on_both_wirings, run, setup};

on_both_wirings! {
    moved => embedded_moved, cluster_moved;
    cleared => embedded_cleared, cluster_cleared;
}

async fn attune(system: &System, code: i32, args: &[&str]) -> anyhow::Result<String> {
    let (found, stdout, stderr) = system.client(args).await?;
    ensure!(
        found == code,
        "{args:?} ended with {found}: {stdout}{stderr}"
    );
    Ok(stdout + &stderr)
}

fn owner_of(system: &System) -> &'static str {
    match system.wiring() {
        Wiring::Embedded => "standalone",
        Wiring::Cluster => "executor",
    }
}

async fn submit(system: &System, body: &Value) -> anyhow::Result<i64> {
    let answer = system.api.try_submit(body).await?.expect(201)?;
    answer["id"]
        .as_i64()
        .ok_or_else(|| anyhow::anyhow!("{answer}"))
}

/// Those that are reprioritised stand in their new priority by age, and who is moved to the front goes
/// before all, also under an owner that takes over; what does not wait is refused.
async fn moved(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.moved";
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run(), 1)).await?;
    let first = submit(system, &json!({"action_ref": REF})).await?;
    let running = gate.next().await?;
    let mut waiting = Vec::new();
    for (user, label) in [
        ("ann", "a"),
        ("bob", "a"),
        ("ann", "b"),
        ("cy", "b"),
        ("ann", "a"),
    ] {
        let body = json!({"action_ref": REF, "requested_by": user, "labels": {"x": label}});
        waiting.push(submit(system, &body).await?);
    }
    let which = ["--action", REF, "--user", "ann"];
    let raise = [&["executions", "reprioritise", "--to", "high"][..], &which].concat();
    let text = attune(system, 0, &[&raise[..], &["--dry-run"]].concat()).await?;
    ensure!(text.contains("3 executions would be touched"), "{text}");
    let text = attune(
        system,
        0,
        &[&raise[..], &["--reason", "they are late", "--who", "eve"]].concat(),
    )
    .await?;
    ensure!(text.contains("3 of 3 reprioritised"), "{text}");
    // The last of all goes first, the second of high is put back, and one that runs is not moved.
    let last = waiting[3].to_string();
    let text = attune(system, 0, &["executions", "front", &last]).await?;
    ensure!(text.contains("1 of 1 moved to the front"), "{text}");
    let number = first.to_string();
    let text = attune(system, 2, &["executions", "front", &number]).await?;
    ensure!(text.contains("named nobody waits"), "{text}");
    let text = attune(system, 0, &["operations", "list"]).await?;
    ensure!(text.contains("reprioritise to high"), "{text}");
    let path = format!("/api/v1/admin/executions/{}/priority", waiting[2]);
    let answer = api
        .put(&path, &json!({"priority": "low"}))
        .await?
        .expect(200)?;
    ensure!(
        answer["priority"] == "low" && answer["status"] == "queued",
        "{answer}"
    );
    let path = format!("/api/v1/admin/executions/{first}/priority");
    let answer = api.put(&path, &json!({"priority": "low"})).await?;
    answer.refused(409, "NOT_WAITING")?;
    let queue = api
        .get("/api/v1/admin/executions/queue")
        .await?
        .expect(200)?;
    ensure!(queue["depth"] == 5 && queue["active"] == 1, "{queue}");
    ensure!(queue["by_priority"]["high"] == 2, "{queue}");
    let list = api
        .get("/api/v1/admin/executions/?priority=high&status=queued")
        .await?
        .expect(200)?;
    ensure!(
        list["executions"]
            .as_array()
            .is_some_and(|it| it.len() == 2),
        "{list}"
    );

    system.crash(owner_of(system)).await?;
    api.until_ready().await?;
    let mut expected: Vec<i64> = [3, 0, 4, 1, 2].map(|place: usize| waiting[place]).into();
    match system.wiring() {
        Wiring::Cluster => running.leave(0).await?,
        // Its worker went down with all the rest: it is tried again, at its place.
        Wiring::Embedded => expected.insert(3, first),
    }
    for expected in expected {
        let visitor = gate.next().await?;
        ensure!(
            visitor.execution_id == expected,
            "{visitor:?} comes before {expected}"
        );
        visitor.leave(0).await?;
    }
    let executions = api.until_idle(REF).await?;
    promises_are_kept(system, &executions).await?;
    let log = api.get("/api/v1/audit-log?limit=10").await?.expect(200)?;
    let entries = log["entries"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let written = entries
        .iter()
        .find(|it| it["what"] == "executions.operation" && it["who"] == "eve");
    ensure!(
        written.is_some_and(|it| it["reason"] == "they are late"),
        "{log}"
    );
    Ok(())
}

/// A queue of several pages is cleared to the last, whatever runs goes on; others are cancelled by their
/// labels, and those that run are asked to end where that is wanted.
async fn cleared(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.cleared";
    const MANY: usize = 2_500;
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited(REF, &gate.run(), 1)).await?;
    let first = submit(system, &json!({"action_ref": REF})).await?;
    let running = gate.next().await?;
    let one = json!({"action_ref": REF});
    for _ in 0..MANY / 500 {
        let batch = Value::Array(vec![one.clone(); 500]);
        api.try_submit(&batch).await?.expect(200)?;
    }
    api.until_queue(REF, json!({"queue_length": MANY, "active_count": 1}))
        .await?;
    let text = attune(system, 0, &["queues", "clear", REF, "--json"]).await?;
    let cleared: Value = serde_json::from_str(&text)?;
    ensure!(
        cleared["state"] == "done" && cleared["matched"] == MANY && cleared["done"] == MANY,
        "{cleared}"
    );
    api.until_queue(
        REF,
        json!({"queue_length": 0, "active_count": 1, "total_cancelled": MANY}),
    )
    .await?;
    let shown = api
        .get(&format!("/api/v1/operations/{}", cleared["id"]))
        .await?
        .expect(200)?;
    ensure!(shown == cleared, "{shown} and {cleared}");
    let id = cleared["id"].to_string();
    let text = attune(system, 0, &["operations", "show", &id, "--json"]).await?;
    let shown: Value = serde_json::from_str(&text)?;
    ensure!(shown == cleared, "{shown} and {cleared}");

    let labelled = json!({"action_ref": REF, "labels": {"batch": "7"}});
    let ended = submit(system, &labelled).await?;
    let kept = submit(system, &one).await?;
    let cancel = [
        "executions",
        "cancel",
        "--label",
        "batch=7",
        "--action",
        REF,
    ];
    let text = attune(system, 0, &cancel).await?;
    ensure!(text.contains("1 of 1 cancelled"), "{text}");
    api.until(ended, "cancelled").await?;
    // Raising the limit lets who waits run; then all are ended.
    let text = attune(system, 0, &["queues", "limit", REF, "2", "--who", "eve"]).await?;
    ensure!(text.contains("is 2 (it was 1)"), "{text}");
    let second = gate.next().await?;
    ensure!(second.execution_id == kept, "{second:?}");
    // Counted by its number, and not ended.
    let number = kept.to_string();
    let count = ["executions", "cancel", &number, "--dry-run"];
    let text = attune(system, 0, &count).await?;
    ensure!(text.contains("1 execution would be touched"), "{text}");
    let text = attune(
        system,
        0,
        &["executions", "cancel", "--pack", "it", "--include-running"],
    )
    .await?;
    ensure!(text.contains("2 of 2 cancelled, or asked to end"), "{text}");
    for execution in [first, kept] {
        api.until(execution, "cancelled").await?;
    }
    drop((running, second));
    // What says nothing, or too much, is refused.
    let text = attune(system, 2, &["executions", "cancel"]).await?;
    ensure!(
        text.contains("--action") && text.contains("--all"),
        "{text}"
    );
    let text = attune(
        system,
        2,
        &["executions", "front", "--all", "--user", "ann"],
    )
    .await?;
    ensure!(text.contains("cannot be used with"), "{text}");
    Ok(())
}

/// How long an operation on 100,000 that wait takes, and what it costs another queue meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, does not test"]
async fn measured_operations() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), measured).await
}

/// Lets so much time go by in which it is measured what happens.
async fn window(seconds: u64) -> anyhow::Result<()> {
    let begin = std::time::Instant::now();
    wait_for("the end of a window", async || {
        ensure!(begin.elapsed().as_secs() >= seconds, "it lasts still");
        Ok(())
    })
    .await
}

async fn measured(system: &System) -> anyhow::Result<()> {
    const MANY: usize = 100_000;
    const BESIDE: &str = "it.beside";
    let api = &system.api;
    let wide = |name: &str| {
        let mut action = limited(name, &noop(), 1);
        action["policy"]["queue"] = json!({"max_length": 2 * MANY});
        action
    };
    api.apply(&wide("it.many")).await?;
    api.apply(&wide(BESIDE)).await?;
    attune(system, 0, &["queues", "pause", "it.many"]).await?;
    let batch = |name: &str, many| Value::Array(vec![json!({"action_ref": name}); many]);
    let many = batch("it.many", 500);
    for _ in 0..MANY / 500 {
        api.try_submit(&many).await?.expect(200)?;
    }
    let operate = async |body: Value| -> anyhow::Result<(f64, f64)> {
        let (from, begin) = (chrono::Utc::now(), std::time::Instant::now());
        let answer = api.post("/api/v1/operations", &body).await?.expect(200)?;
        ensure!(answer["done"] == MANY, "{answer}");
        let took = begin.elapsed().as_secs_f64() * 1_000.0;
        println!("{} {took:.0} ms", body["kind"]);
        let seconds = |at: chrono::DateTime<chrono::Utc>| at.timestamp_micros() as f64 / 1e6;
        Ok((seconds(from), seconds(chrono::Utc::now())))
    };
    for _ in 0..8 {
        api.try_submit(&batch(BESIDE, 500)).await?.expect(200)?;
    }
    let filter = json!({"action": "it.many"});
    let calm = chrono::Utc::now().timestamp_micros() as f64 / 1e6;
    window(3).await?;
    let mut times = Vec::new();
    for body in [
        json!({"kind": "reprioritise", "priority": "low", "filter": filter}),
        json!({"kind": "move_to_front", "filter": filter}),
        json!({"kind": "clear", "filter": filter}),
    ] {
        times.push((body["kind"].to_string(), operate(body).await?));
        window(1).await?;
    }
    attune(system, 0, &["queues", "clear", BESIDE]).await?;
    let executions = api.executions(BESIDE).await?;
    let starts = executions
        .iter()
        .filter_map(|it| it["started_at"].as_str()?.parse().ok());
    let mut starts: Vec<f64> = starts
        .map(|at: chrono::DateTime<chrono::Utc>| at.timestamp_micros() as f64 / 1e6)
        .collect();
    starts.sort_unstable_by(f64::total_cmp);
    let handed_on = |name: &str, (from, to): (f64, f64)| {
        let within = starts
            .windows(2)
            .filter(|two| two[0] >= from && two[1] <= to);
        let mut gaps: Vec<f64> = within.map(|two| (two[1] - two[0]) * 1_000.0).collect();
        gaps.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| gaps.get((gaps.len() as f64 * share) as usize).copied();
        println!(
            "{name}: {} starts, p50 {:?} ms, p99 {:?} ms",
            gaps.len(),
            at(0.5),
            at(0.99)
        );
    };
    handed_on("before", (calm, calm + 3.0));
    for (kind, during) in times {
        handed_on(&kind, during);
    }
    Ok(())
}
