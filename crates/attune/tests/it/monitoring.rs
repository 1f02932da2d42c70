//! What operators read with SQL while the system works.

use anyhow::{Context as _, ensure};
use attune_testkit::{Api, Gate, System, Wiring, wait_for};
use serde_json::json;
use sqlx::postgres::types::PgInterval;
use sqlx::types::chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::support::{limited, noop, number, run, setup};

const ACTIVE_QUEUES: &str = "\
SELECT action_id, queue_length, active_count, max_concurrent, oldest_enqueued_at, last_updated
FROM attune.queue_stats WHERE queue_length > 0 OR active_count > 0 ORDER BY queue_length DESC;";

const STUCK_QUEUES: &str = "\
SELECT a.ref, qs.queue_length, qs.active_count, qs.oldest_enqueued_at, NOW() - qs.last_updated AS stale_duration
FROM attune.queue_stats qs JOIN attune.action a ON a.id = qs.action_id
WHERE (queue_length > 0 OR active_count > 0) AND last_updated < NOW() - INTERVAL '10 minutes';";

const THROUGHPUT: &str = "\
SELECT a.ref, qs.total_completed, qs.total_enqueued,
       qs.total_completed::float / NULLIF(qs.total_enqueued, 0) * 100 AS completion_rate
FROM attune.queue_stats qs JOIN attune.action a ON a.id = qs.action_id
WHERE total_enqueued > 0 ORDER BY total_enqueued DESC;";

const SLOTS_OF_ONE_ACTION: &str = "\
SELECT id, status, created FROM attune.execution
WHERE action = 1 AND status IN ('running', 'requested') ORDER BY created DESC LIMIT 10;";

type Active = (
    i64,
    i64,
    i64,
    Option<i32>,
    Option<DateTime<Utc>>,
    DateTime<Utc>,
);
type Stuck = (String, i64, i64, Option<DateTime<Utc>>, PgInterval);
type Rate = (String, i64, i64, f64);
type Slot = (i64, String, DateTime<Utc>);

/// The queries that operators have run for years show what goes on.
async fn queries(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let mut gate = Gate::open().await?;
    let busy = api.apply(&limited("it.busy", &gate.run(), 2)).await?;
    let busy = number(&busy, "id")?;
    api.apply(&limited("it.batch", &noop(), 5)).await?;
    api.submit_batch("it.batch", (0..200).map(|number| json!({"number": number})))
        .await?;
    for _ in 0..6 {
        api.submit("it.busy", json!({})).await?;
    }
    let (first, second) = (gate.next().await?, gate.next().await?);
    first.leave(0).await?;
    let third = gate.next().await?;
    api.until_idle("it.batch").await?;
    api.until_queue(
        "it.batch",
        json!({"total_completed": 200, "active_count": 0}),
    )
    .await?;
    let busy_now = json!({"queue_length": 3, "active_count": 2, "total_completed": 1});
    api.until_queue("it.busy", busy_now).await?;

    let mut sql = system.database()?.connect().await?;
    let active: Vec<Active> = sqlx::query_as(ACTIVE_QUEUES).fetch_all(&mut sql).await?;
    let figures: Vec<_> = active
        .iter()
        .map(|row| (row.0, row.1, row.2, row.3))
        .collect();
    ensure!(figures == [(busy, 3, 2, Some(2))], "{figures:?}");
    ensure!(active[0].4.is_some(), "when did the oldest come?");
    let stuck: Vec<Stuck> = sqlx::query_as(STUCK_QUEUES).fetch_all(&mut sql).await?;
    ensure!(stuck.is_empty(), "{stuck:?}");
    let rates: Vec<Rate> = sqlx::query_as(THROUGHPUT).fetch_all(&mut sql).await?;
    ensure!(
        rates[0] == ("it.batch".to_owned(), 200, 200, 100.0),
        "{rates:?}"
    );
    let rate = rates
        .iter()
        .find(|rate| rate.0 == "it.busy")
        .context("it.busy is missing")?;
    ensure!((rate.1, rate.2) == (1, 6), "{rates:?}");

    // The query speaks of action 1; as it is, and about the one that is busy. That a run has begun
    // is written down after it has: until then its execution is requested.
    sqlx::query_as::<_, Slot>(SLOTS_OF_ONE_ACTION)
        .fetch_all(&mut sql)
        .await?;
    let mut inside = [second.execution_id, third.execution_id].map(|id| (id, "running".to_owned()));
    inside.sort_unstable();
    wait_for("both that run and none else", async || {
        let mut holders = slots(&mut system.database()?.connect().await?, busy).await?;
        holders.sort_unstable();
        ensure!(holders == inside, "{holders:?} are not {inside:?}");
        Ok(())
    })
    .await?;
    for visitor in [second, third] {
        visitor.leave(0).await?;
    }
    for _ in 0..3 {
        gate.next().await?.leave(0).await?;
    }
    api.until_idle("it.busy").await?;
    ensure!(
        slots(&mut sql, busy).await?.is_empty(),
        "something still holds a slot"
    );
    Ok(())
}

/// Who holds the slots of an action, and its status.
async fn slots(sql: &mut PgConnection, action: i64) -> anyhow::Result<Vec<(i64, String)>> {
    let query = SLOTS_OF_ONE_ACTION.replace("action = 1", &format!("action = {action}"));
    let slots: Vec<Slot> = sqlx::query_as(AssertSqlSafe(query)).fetch_all(sql).await?;
    Ok(slots
        .into_iter()
        .map(|(id, status, _)| (id, status))
        .collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_monitoring_queries() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), queries).await
}

/// A worker that is told to end and waits for what it runs says so, and is measured, until it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_worker_that_drains_is_seen() -> anyhow::Result<()> {
    let system = System::start(setup(Wiring::Cluster).workers(1)).await?;
    let mut gate = Gate::open().await?;
    system
        .api
        .apply(&limited("it.long", &gate.run(), 1))
        .await?;
    system.api.submit("it.long", json!({})).await?;
    let visitor = gate.next().await?;
    let mark = "serving /healthz, /readyz and /metrics server.address=";
    let address = system.announced("worker-1", mark).await;
    let probes = Api::new(format!("http://{}", address.context("no probes")?))?;
    let looking = async {
        wait_for("a worker that says that it stops", async || {
            let answer = probes.get("/readyz").await?.expect(503)?;
            ensure!(answer["stopping"] == true, "{answer}");
            Ok(())
        })
        .await?;
        probes.metric("worker_slots_busy").await?;
        visitor.leave(0).await
    };
    tokio::try_join!(system.halt("worker-1"), looking)?;
    system.start_again("worker-1").await?;
    system.api.until_idle("it.long").await?;
    system.stop().await
}
