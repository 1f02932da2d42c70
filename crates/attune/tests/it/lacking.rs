//! A part that lacks something that only an operator can give (a right on the broker, a right in the database, a
//! key) says so, goes on with everything else, and goes on with that as well once it is given.

use anyhow::{Context as _, ensure};
use attune_testkit::{System, Wiring, wait_for};
use serde_json::json;
use sqlx::AssertSqlSafe;

use crate::doctor_support::Report;
use crate::secrets::{new_key, private};
use crate::support::{limited, noop, run, setup};

/// What owners say of their partitions: every partition has as many epochs as it had owners.
async fn epochs(system: &System) -> anyhow::Result<i64> {
    let mut database = system.database()?.connect().await?;
    let query = "SELECT sum(epoch)::bigint FROM attune.partition_lease";
    Ok(sqlx::query_scalar(query).fetch_one(&mut database).await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_an_executor_without_the_right_to_events_works() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster).accounts(), without_events).await
}

async fn without_events(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.untold";
    let api = &system.api;
    let executor = system.user_of("attune-executor");
    let keys = |write: &str| json!({"exchange": "attune.executions", "write": write, "read": ".*"});
    let broker = system.broker()?;
    broker
        .may_publish(&executor, &keys("^(?!event[.]).*$"))
        .await?;
    let before = epochs(system).await?;
    let mut spec = limited(REF, &noop(), 2);
    spec["policy"]["events"] = json!(["all"]);
    api.apply(&spec).await?;
    for _ in 0..20 {
        let id = api.submit(REF, json!({})).await?.id;
        api.until(id, "succeeded").await?;
    }
    let forbidden = async || system.metric("bus_forbidden_total").await;
    wait_for("what is refused is counted", async || {
        ensure!(forbidden().await? > 0.0, "nothing is");
        Ok(())
    })
    .await?;
    let reconnects = system.metric("bus_reconnects_total").await?;
    ensure!(
        reconnects == 0.0,
        "{reconnects} connections were made again"
    );
    ensure!(epochs(system).await? == before, "partitions went over");
    system.ready("executor").await?.expect(200)?;
    let log = system.logs().await;
    let told = log.matches("attune topology permissions").count();
    ensure!(
        log.contains("event.accepted") && log.contains("event.finished"),
        "{log}"
    );
    // Not one line for each of the messages.
    ensure!((1..40).contains(&told), "it is told {told} times");

    broker.may_publish(&executor, &keys(".*")).await?;
    wait_for("that events are told again", async || {
        let before = forbidden().await?;
        let id = api.submit(REF, json!({})).await?.id;
        api.until(id, "succeeded").await?;
        let after = forbidden().await?;
        ensure!(before == after, "{} more are refused", after - before);
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_an_api_without_a_right_in_the_database_says_that_it_can_be_asked_again()
-> anyhow::Result<()> {
    run(setup(Wiring::Cluster).accounts(), without_a_table).await
}

async fn without_a_table(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let mut login = system.database_as("attune-api").await?;
    let name: String = sqlx::query_scalar("SELECT current_user::text")
        .fetch_one(&mut login)
        .await?;
    let group = name
        .strip_suffix("login_attune_api")
        .context("another name")?;
    let mut owner = system.database()?.connect().await?;
    let take = format!("REVOKE SELECT ON attune.dead_letter FROM \"{group}api\"");
    sqlx::raw_sql(AssertSqlSafe(take))
        .execute(&mut owner)
        .await?;
    let answer = api.get("/api/v1/dead-letters").await?;
    answer.refused(503, "STORE_UNAVAILABLE")?;
    let log = system.logs().await;
    ensure!(
        log.contains("permission denied for table dead_letter"),
        "{log}"
    );
    let give = format!("GRANT SELECT ON attune.dead_letter TO \"{group}api\"");
    sqlx::raw_sql(AssertSqlSafe(give))
        .execute(&mut owner)
        .await?;
    api.get("/api/v1/dead-letters").await?.expect(200)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_worker_without_the_key_gives_back_what_it_cannot_open() -> anyhow::Result<()> {
    with_another_key(Wiring::Cluster).await
}

/// Where a line was taken out of the file too early.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_a_worker_without_the_key_gives_back_what_it_cannot_open() -> anyhow::Result<()> {
    with_another_key(Wiring::Embedded).await
}

async fn with_another_key(wiring: Wiring) -> anyhow::Result<()> {
    let own = tempfile::Builder::new().prefix("attune-own-").tempdir()?;
    let (right, wrong) = (own.path().join("keys"), own.path().join("others"));
    let key = new_key().await?;
    private(&right, &key)?;
    // Its name has the second in it, and a key of the same name that is another one opens nothing anywhere.
    private(&wrong, &format!("other-{}", new_key().await?))?;
    let id = key.split(':').next().context("a key without a name")?;
    let setup = setup(wiring)
        .workers(1)
        .set("secrets.key_file", &right.to_string_lossy());
    run(setup, async |system| {
        without_the_key(system, id, &wrong.to_string_lossy()).await
    })
    .await
}

/// Runs a client command.
async fn told(system: &System, args: &[&str]) -> anyhow::Result<String> {
    let (code, out, err) = system.client(args).await?;
    ensure!(code == 0, "{args:?}: {err}");
    Ok(out)
}

async fn without_the_key(system: &System, key: &str, wrong: &str) -> anyhow::Result<()> {
    const REF: &str = "it.keyless";
    let api = &system.api;
    let is_embedded = system.wiring() == Wiring::Embedded;
    let holder = if is_embedded {
        "standalone"
    } else {
        "worker-1"
    };
    let program = json!({"program": ["/bin/cat"]});
    let mut spec = limited(REF, &program, 1);
    spec["parameters"] = json!({"properties": {"password": {"type": "string", "secret": true}}});
    api.apply(&spec).await?;
    api.apply(&limited("it.open", &noop(), 1)).await?;
    // It is sealed with the right key, before there is another one.
    told(system, &["queues", "pause", REF, "--reason", "it"]).await?;
    let id = api.submit(REF, json!({"password": "hunter2"})).await?.id;
    system.halt(holder).await?;
    system
        .start_with(holder, &[("secrets.key_file", wrong)])
        .await?;
    told(system, &["queues", "resume", REF]).await?;
    wait_for("that it comes back", async || {
        let given_back = system.metric_of(holder, "worker_keyless_total").await?;
        ensure!(given_back >= 2.0, "{given_back} times");
        let ready = system.ready(holder).await?;
        let said = ready.expect(503)?.to_string();
        ensure!(said.contains("lacks a key"), "{said}");
        Ok(())
    })
    .await?;
    // What needs no key runs, and nothing has failed.
    let open = api.submit("it.open", json!({})).await?.id;
    api.until(open, "succeeded").await?;
    let seen = api.get(&format!("/api/v1/executions/{id}")).await?;
    let seen = seen.expect(200)?;
    ensure!(
        ["queued", "requested"]
            .iter()
            .any(|it| seen["status"] == *it),
        "{seen}"
    );
    key_is_missed(system, id, key).await?;
    let path = format!("/api/v1/actions/{REF}/queue-stats");
    system.halt(holder).await?;
    system.start_again(holder).await?;
    let ended = api.until(id, "succeeded").await?;
    ensure!(ended["stdout"] == "{\"password\":\"********\"}", "{ended}");
    wait_for("that all is well", async || {
        let queue = api.get(&path).await?;
        let queue = queue.expect(200)?;
        ensure!(queue["health"]["state"] == "healthy", "{queue}");
        Ok(())
    })
    .await
}

/// Whoever asks is told which key it is, who lacks it, and what to do.
async fn key_is_missed(system: &System, id: i64, key: &str) -> anyhow::Result<()> {
    const REF: &str = "it.keyless";
    let api = &system.api;
    let name = match system.wiring() {
        Wiring::Embedded => "standalone",
        Wiring::Cluster => "worker-1",
    };
    let lacks = format!("its workers lack the key \"{key}\"");
    let waits = format!(
        "for a worker with the key \"{key}\": its workers lack the key that seals its parameters"
    );
    let id = id.to_string();
    wait_for("that it is said", async || {
        let why = api.get(&format!("/api/v1/executions/{id}/explain")).await?;
        let why = why.expect(200)?;
        let said = why["waits"].as_str().unwrap_or_default();
        ensure!(said.starts_with(&waits) && said.contains(name), "{why}");
        let reason = &why["waits_for"][0];
        ensure!(reason["kind"] == "key" && reason["key"] == key, "{why}");
        ensure!(reason["times"].as_u64() >= Some(2), "{why}");
        let queue = api
            .get(&format!("/api/v1/actions/{REF}/queue-stats"))
            .await?;
        let queue = queue.expect(200)?;
        ensure!(queue["health"]["state"] == "unhealthy", "{queue}");
        let reasons = queue["health"]["reasons"].to_string();
        ensure!(
            reasons.replace("\\\"", "\"").contains(&lacks) && reasons.contains(name),
            "{queue}"
        );
        let open = api.get("/api/v1/actions/it.open/queue-stats").await?;
        ensure!(
            open.expect(200)?["health"]["state"] == "healthy",
            "another queue"
        );
        Ok(())
    })
    .await?;
    for args in [["explain", &id], ["queues", REF]] {
        let text = told(system, &args).await?;
        ensure!(text.contains("lack the key"), "{args:?}: {text}");
    }
    let text = told(system, &["executions", "show", &id]).await?;
    ensure!(text.contains("lack the key"), "{text}");
    let role = match system.wiring() {
        Wiring::Embedded => &["--role", "standalone"][..],
        Wiring::Cluster => &[],
    };
    wait_for("that the doctor says it", async || {
        let args = [&["doctor", "--json"][..], role].concat();
        let report = Report::of(system.command(&args).await?)?;
        report.says("cluster/keys", &format!("put the line `{key}:…`"))?;
        report.says("cluster/keys", "secrets.key_file here has it")?;
        report.says("cluster/keys", REF)
    })
    .await
}

/// A listener whose user executors do not know of, and none at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_ends_that_do_not_arrive_are_told() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster).accounts(), ends_do_not_arrive).await
}

async fn ends_do_not_arrive(system: &System) -> anyhow::Result<()> {
    const REF: &str = "it.endless";
    let api = &system.api;
    api.apply(&limited(REF, &noop(), 1)).await?;
    let (executor, listener) = (
        system.user_of("attune-executor"),
        system.user_of("attune-listener"),
    );
    let parts = format!("{executor}, {}", system.user_of("attune-api"));
    system.halt("executor").await?;
    system
        .start_with("executor", &[("broker.parts", &parts)])
        .await?;
    let id = api.submit(REF, json!({})).await?.id;
    let path = format!("/api/v1/actions/{REF}/queue-stats");
    let is_told = async |said: &str, advice: &str| {
        wait_for(said, async || {
            let queue = api.get(&path).await?;
            let queue = queue.expect(200)?;
            ensure!(queue["health"]["state"] == "unhealthy", "{queue}");
            let reasons = queue["health"]["reasons"].to_string();
            ensure!(
                reasons.contains("not every slot has come free since ") && reasons.contains(said),
                "{reasons}"
            );
            let report = Report::of(system.command(&["doctor", "--json"]).await?)?;
            report.says("cluster/owners", said)?;
            report.says("cluster/owners", advice)
        })
        .await
    };
    let sends = format!("`{listener}` sends them, and is none of broker.parts");
    is_told(&sends, "name its user in broker.parts").await?;
    let broker = format!("broker.url={}", system.broker_of("attune-listener")?);
    let parts = format!("broker.parts={parts}");
    let args = [
        "doctor",
        "--json",
        "--role",
        "completion-listener",
        "--set",
        &broker,
        "--set",
        &parts,
    ];
    let report = Report::of(system.command(&args).await?)?;
    report.says("broker/parts", &format!("add `{listener}` to broker.parts"))?;
    system.halt("executor").await?;
    system.start_again("executor").await?;
    api.until(id, "succeeded").await?;

    system.halt("completion-listener").await?;
    let id = api.submit(REF, json!({})).await?.id;
    let nobody = "nobody takes them from attune.completed";
    is_told(nobody, "start the completion listener").await?;
    system.start_again("completion-listener").await?;
    api.until(id, "succeeded").await?;
    wait_for("that all is well", async || {
        let queue = api.get(&path).await?;
        let queue = queue.expect(200)?;
        ensure!(queue["health"]["state"] == "healthy", "{queue}");
        Ok(())
    })
    .await
}
