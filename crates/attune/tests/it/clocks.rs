//! Clocks that are set: PostgreSQL's, an executor's, a worker's, two hours forward and back. Nothing
//! expires, nothing starts early, nothing that runs is taken back, every partition keeps its owner,
//! and work goes on.

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, Setup, System, Wiring, wait_for};
use serde_json::json;

use crate::support::{limited, noop, number, run, setup};

/// By how much clocks are set, in seconds.
const STEP: i64 = 7200;

/// Gives a database a clock of its own that can be set: its functions come before PostgreSQL's.
const CLOCK: &str = r#"
CREATE SCHEMA wrong;
CREATE TABLE wrong.clock (ahead interval NOT NULL);
INSERT INTO wrong.clock VALUES ('0');
CREATE FUNCTION wrong.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT pg_catalog.clock_timestamp() + (SELECT ahead FROM wrong.clock)';
CREATE FUNCTION wrong.now() RETURNS timestamptz LANGUAGE sql STABLE
    AS 'SELECT pg_catalog.now() + (SELECT ahead FROM wrong.clock)';
DO $$ BEGIN
    EXECUTE format('ALTER DATABASE %I SET search_path = wrong, pg_catalog, public',
                   current_database());
END $$;
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_clock_of_postgres() -> anyhow::Result<()> {
    let setup = system().prepared(CLOCK);
    run(setup, async |system| {
        let mut database = system.database()?.connect().await?;
        bears(system, async |seconds| {
            sqlx::query("UPDATE wrong.clock SET ahead = make_interval(secs => $1)")
                .bind(f64::from(i32::try_from(seconds)?))
                .execute(&mut database)
                .await?;
            Ok(())
        })
        .await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_clocks_of_executors() -> anyhow::Result<()> {
    run(system().clocks(), async |system| {
        bears(system, async |seconds| {
            system.set_clock("executor-1", seconds)?;
            system.set_clock("executor-2", -seconds)
        })
        .await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_clocks_of_workers() -> anyhow::Result<()> {
    run(system().clocks(), async |system| {
        bears(system, async |seconds| {
            system.set_clock("worker-1", seconds)?;
            system.set_clock("worker-2", -seconds)
        })
        .await
    })
    .await
}

fn system() -> Setup {
    setup(Wiring::Cluster).executors(2)
}

/// What must not change while clocks do.
#[derive(Debug, PartialEq)]
struct Standing {
    /// Who owns each partition, in which epoch.
    owners: Vec<(i32, Option<String>, i64)>,
    /// Every worker, and whether its lease was ended.
    workers: Vec<(String, bool)>,
}

impl Standing {
    async fn of(system: &System) -> anyhow::Result<Self> {
        let mut database = system.database()?.connect().await?;
        let owners = "SELECT partition, owner_name, epoch FROM attune.partition_lease
                      ORDER BY partition";
        let workers = "SELECT name, ended FROM attune.worker_lease ORDER BY name, worker";
        Ok(Self {
            owners: sqlx::query_as(owners).fetch_all(&mut database).await?,
            workers: sqlx::query_as(workers).fetch_all(&mut database).await?,
        })
    }
}

/// How often each lease was renewed, the least of all.
async fn renewals(system: &System) -> anyhow::Result<i64> {
    let mut database = system.database()?.connect().await?;
    let least = "SELECT least((SELECT min(renewals) FROM attune.partition_lease),
                              (SELECT min(renewals) FROM attune.worker_lease WHERE NOT ended))";
    Ok(sqlx::query_scalar(least).fetch_one(&mut database).await?)
}

/// Waits until every lease has been renewed a few times more, longer than leases last.
async fn leases_go_on(system: &System) -> anyhow::Result<()> {
    // A lease is renewed three times in as long as it lasts, or a little oftener.
    const TIMES: i64 = 5;
    let before = renewals(system).await?;
    wait_for("renewals", async || {
        let now = renewals(system).await?;
        ensure!(now >= before + TIMES, "{} of {TIMES}", now - before);
        Ok(())
    })
    .await
}

/// One runs, one waits for its slot, one for its time; then the clocks are set.
async fn bears(
    system: &System,
    mut set: impl AsyncFnMut(i64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let api = &system.api;
    // Partitions have found their owners: nothing moves any more by itself.
    wait_for("owners", async || {
        let standing = Standing::of(system).await?;
        let mut names: Vec<_> = standing.owners.iter().map(|(_, name, _)| name).collect();
        names.sort();
        names.dedup();
        ensure!(names.len() == 2 && names[0].is_some(), "{names:?}");
        Ok(())
    })
    .await?;
    leases_go_on(system).await?;
    let mut gate = Gate::open().await?;
    let mut spec = limited("it.held", &gate.run(), 1);
    spec["policy"]["queue"] = json!({"timeout_seconds": 3600});
    api.apply(&spec).await?;
    let running = api.submit("it.held", json!({})).await?.id;
    let visitor = gate.next().await?;
    let waiting = api.submit("it.held", json!({})).await?.id;
    api.apply(&limited("it.done", &noop(), 1)).await?;
    let in_an_hour = chrono::Utc::now() + chrono::TimeDelta::hours(1);
    let body = json!({"action_ref": "it.done", "not_before": in_an_hour.to_rfc3339()});
    let delayed = api.try_submit(&body).await?.expect(201)?;
    let delayed = number(&delayed, "id")?;
    let before = Standing::of(system).await?;

    for seconds in [STEP, 0, -STEP, 0] {
        set(seconds).await?;
        leases_go_on(system).await.context(seconds)?;
        let after = Standing::of(system).await?;
        ensure!(
            after == before,
            "at {seconds} s: {after:?}, and before {before:?}"
        );
        ensure!(
            gate.uninvited().is_empty(),
            "somebody was started at {seconds} s"
        );
        for id in [waiting, delayed] {
            let found = api.execution(id).await?;
            ensure!(found["status"] == "queued", "at {seconds} s: {found}");
        }
        let done = api.submit("it.done", json!({})).await?.id;
        api.until(done, "succeeded").await?;
    }
    visitor.leave(0).await?;
    let next = gate.next().await?;
    ensure!(next.execution_id == waiting, "{next:?}");
    next.leave(0).await?;
    for id in [running, waiting] {
        let ended = api.until(id, "succeeded").await?;
        ensure!(number(&ended, "attempt")? == 1, "{ended}");
    }
    Ok(())
}
