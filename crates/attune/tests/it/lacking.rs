//! A part that lacks something that only an operator can give (a right on the broker, a right in the database, a
//! key) says so, goes on with everything else, and goes on with that as well once it is given.

use anyhow::{Context as _, ensure};
use attune_testkit::{System, Wiring, wait_for};
use serde_json::json;
use sqlx::AssertSqlSafe;

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
    let own = tempfile::Builder::new().prefix("attune-own-").tempdir()?;
    let (right, wrong) = (own.path().join("keys"), own.path().join("others"));
    private(&right, &new_key().await?)?;
    // Its name has the second in it, and a key of the same name that is another one opens nothing anywhere.
    private(&wrong, &format!("other-{}", new_key().await?))?;
    let setup = setup(Wiring::Cluster)
        .workers(1)
        .set("secrets.key_file", &right.to_string_lossy());
    run(setup, async |system| {
        without_the_key(system, &wrong.to_string_lossy()).await
    })
    .await
}

async fn without_the_key(system: &System, wrong: &str) -> anyhow::Result<()> {
    const REF: &str = "it.keyless";
    let api = &system.api;
    let program = json!({"program": ["/bin/cat"]});
    let mut spec = limited(REF, &program, 1);
    spec["parameters"] = json!({"properties": {"password": {"type": "string", "secret": true}}});
    api.apply(&spec).await?;
    api.apply(&limited("it.open", &noop(), 1)).await?;
    system.halt("worker-1").await?;
    system
        .start_with("worker-1", &[("secrets.key_file", wrong)])
        .await?;
    let id = api.submit(REF, json!({"password": "hunter2"})).await?.id;
    wait_for("that it comes back", async || {
        let given_back = system.metric_of("worker-1", "worker_keyless_total").await?;
        ensure!(given_back >= 2.0, "{given_back} times");
        let ready = system.ready("worker-1").await?;
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
    system.halt("worker-1").await?;
    system.start_again("worker-1").await?;
    let ended = api.until(id, "succeeded").await?;
    ensure!(ended["stdout"] == "{\"password\":\"********\"}", "{ended}");
    Ok(())
}
