//! Faults that last, and queues that are full: what one thing cannot do stops nothing else, and
//! nothing that was accepted is lost.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use attune_bus::Topic;
use attune_core::{PartitionId, RequestId};
use attune_record::{Record, read_dir};
use attune_testkit::{Api, System, Wiring, wait_for};
use serde_json::{Value, json};
use sqlx::PgConnection;
use tokio::time::Instant;

use crate::stranger::{connect, envelope, publish};
use crate::support::{all_are, limited, memory_was_bounded, noop, number, run, setup};

/// The bound that the default settings put on a message and on a body of the API.
const LARGEST: usize = 1024 * 1024;
/// What else there is to do meanwhile.
pub(crate) const LIVE: &str = "it.live";
/// An action of another partition.
const OTHER: &str = "it.other";
/// How the health of a queue begins to say that its owner cannot write.
const UNDECIDED: &str = "nothing has been decided since ";

/// What a full disk says.
const REFUSING: &str = "
    CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'could not extend file: No space left on device'
            USING ERRCODE = '53100';
    END $$;";
/// For the rows of executions alone: leases can be written.
const REFUSE: &str = "
    CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON attune.execution_active
        FOR EACH ROW EXECUTE FUNCTION public.refuse();
    CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON attune.execution_history
        FOR EACH ROW EXECUTE FUNCTION public.refuse();";
/// For dead letters alone.
const REFUSE_LETTERS: &str = "
    CREATE TRIGGER refuse BEFORE INSERT ON attune.dead_letter
        FOR EACH ROW EXECUTE FUNCTION public.refuse();";
const TAKE: &str = "
    DROP TRIGGER refuse ON attune.execution_active;
    DROP TRIGGER refuse ON attune.execution_history;";

fn firing(action_ref: &str, parameters: &Value) -> Vec<u8> {
    let payload = json!({
        "action_ref": action_ref, "request_id": RequestId::fresh(), "parameters": parameters,
    });
    envelope("enforcement.created", 1, &payload)
}

/// A rule firing whose message has so many bytes.
pub(crate) fn firing_of(action_ref: &str, size: usize) -> Vec<u8> {
    let pad = |length| firing(action_ref, &json!({"pad": "x".repeat(length)}));
    pad(size.saturating_sub(pad(0).len()))
}

/// Something else is asked for, by HTTP, and ends.
pub(crate) async fn the_rest_goes_on(system: &System) -> anyhow::Result<()> {
    let live = wait_for("an answer for something else", async || {
        let ask = json!({"action_ref": LIVE});
        system.api.try_submit(&ask).await?.expect(201)
    })
    .await?;
    system.api.until(number(&live, "id")?, "succeeded").await?;
    Ok(())
}

async fn epochs(sql: &mut PgConnection) -> anyhow::Result<Vec<i64>> {
    let epochs = "SELECT epoch::bigint FROM attune.partition_lease ORDER BY partition";
    Ok(sqlx::query_scalar(epochs).fetch_all(sql).await?)
}

/// Whether the health of a queue says that its owner cannot write, as it should or should not; with
/// its reasons.
async fn accused(api: &Api, action_ref: &str, wanted: bool) -> anyhow::Result<String> {
    let health = api.queue(action_ref).await?["health"].take();
    let reasons = health["reasons"].to_string();
    let is_accused = reasons.contains(UNDECIDED) && health["state"] == "unhealthy";
    ensure!(is_accused == wanted, "{action_ref}: {health}");
    Ok(reasons)
}

/// As [`wait_for`], for at most so long.
pub(crate) async fn within<T>(
    bound: Duration,
    what: &str,
    look: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let found = tokio::time::timeout(bound, wait_for(what, look)).await;
    found.with_context(|| format!("{what} did not come within {bound:?}"))?
}

/// The store refuses rows for half a minute while leases are renewed: what was confirmed stays in
/// its queue, partitions are not loaded again and again, and all goes on by itself.
async fn refused_commits(system: &System) -> anyhow::Result<()> {
    const COUNT: usize = 300;
    const OUTAGE: Duration = Duration::from_secs(30);
    const HEALED: Duration = Duration::from_secs(5);
    let api = &system.api;
    api.apply(&limited(LIVE, &noop(), 4)).await?;
    // It belongs to another partition.
    api.apply(&limited(OTHER, &noop(), 4)).await?;
    the_rest_goes_on(system).await?;
    let mut sql = system.database()?.connect().await?;
    sqlx::raw_sql(REFUSING).execute(&mut sql).await?;
    sqlx::raw_sql(REFUSE).execute(&mut sql).await?;
    let before = epochs(&mut sql).await?;
    let bus = connect(system).await?;
    for _ in 0..COUNT {
        publish(&bus, &Topic::Enforcements, firing(LIVE, &json!({}))).await?;
    }
    let began = Instant::now();
    let said = within(OUTAGE, "an unhealthy queue", async || {
        accused(api, LIVE, true).await
    });
    let said = said.await?;
    ensure!(
        said.contains("No space left on device") && !said.contains("://"),
        "{said}"
    );
    println!("after {:?}: {said}", began.elapsed());
    let listed = api.get("/api/v1/queue-stats").await?.expect(200)?;
    let listed = listed["queues"][0]["health"].to_string();
    ensure!(listed.contains(UNDECIDED), "{listed}");
    accused(api, OTHER, false).await?;
    let ready = async |status: u16| {
        let answer = system.ready("executor").await?;
        ensure!(answer.status == status, "{answer:?}");
        Ok(answer.body)
    };
    let left = OUTAGE.saturating_sub(began.elapsed());
    let red = within(left, "unreadiness", async || ready(503).await).await?;
    println!("after {:?}: {red}", began.elapsed());
    accused(api, OTHER, false).await?;
    wait_for("the end of the outage", async || {
        ensure!(began.elapsed() >= OUTAGE, "it goes on");
        Ok(())
    })
    .await?;
    let after = epochs(&mut sql).await?;
    let held_back = system.api.executions(LIVE).await?.len();
    ensure!(
        held_back == 1,
        "{held_back} were decided while nothing could be"
    );
    sqlx::raw_sql(TAKE).execute(&mut sql).await?;
    let healed = Instant::now();
    let left = || HEALED.saturating_sub(healed.elapsed());
    // What is told of health may come before or after the decisions themselves, which count.
    within(left(), "the end of something that had waited", async || {
        let path = format!("/api/v1/executions?action={LIVE}&status=succeeded&limit=2");
        let page = api.get(&path).await?.expect(200)?;
        let ended = page["executions"].as_array().context("no list")?.len();
        ensure!(ended == 2, "{page}");
        Ok(())
    })
    .await?;
    println!("something ended {:?} after it had healed", healed.elapsed());
    within(left(), "a queue that is well", async || {
        accused(api, LIVE, false).await
    })
    .await?;
    within(left(), "readiness", async || ready(200).await).await?;
    println!("clean {:?} after it had healed", healed.elapsed());
    let executions = wait_for("what was confirmed", async || {
        let executions = api.until_idle(LIVE).await?;
        ensure!(executions.len() == COUNT + 1, "{} came", executions.len());
        Ok(executions)
    })
    .await?;
    println!("all ended {:?} after it had healed", healed.elapsed());
    all_are(&executions, "succeeded")?;
    let rises = before
        .iter()
        .zip(&after)
        .map(|(before, after)| after - before);
    let most = rises.max().unwrap_or_default();
    ensure!(
        most <= 1,
        "a partition was loaded {most} times in one outage"
    );
    let letters: i64 = sqlx::query_scalar("SELECT count(*) FROM attune.dead_letter")
        .fetch_one(&mut sql)
        .await?;
    ensure!(letters == 0, "{letters} messages became dead letters");
    Ok(())
}

/// No letter can be stored, and firings come that nobody can use: what else their partition has to do
/// is done, and they are letters in the end.
async fn refused_letters(system: &System) -> anyhow::Result<()> {
    const COUNT: usize = 8;
    system.api.apply(&limited(LIVE, &noop(), 4)).await?;
    the_rest_goes_on(system).await?;
    let home = |name: &str| PartitionId::of(name, 4);
    let mut names = (0..).map(|n| format!("it.nobody{n}"));
    let nobody = names.find(|name| home(name) == home(LIVE));
    let nobody = nobody.context("no such name")?;
    let mut sql = system.database()?.connect().await?;
    sqlx::raw_sql(REFUSING).execute(&mut sql).await?;
    sqlx::raw_sql(REFUSE_LETTERS).execute(&mut sql).await?;
    let bus = connect(system).await?;
    for _ in 0..COUNT {
        publish(&bus, &Topic::Enforcements, firing(&nobody, &json!({}))).await?;
        the_rest_goes_on(system).await?;
    }
    let said = wait_for("a word in the health of the queue", async || {
        let health = system.api.queue(LIVE).await?["health"].take();
        let reasons = health["reasons"].to_string();
        let is_told = reasons.contains("dead letters or entries of the audit log cannot be stored");
        ensure!(is_told && health["state"] == "degraded", "{health}");
        Ok(reasons)
    })
    .await?;
    ensure!(said.contains("could not extend file"), "{said}");
    let letters = async |sql: &mut PgConnection| {
        let count = "SELECT count(*) FROM attune.dead_letter";
        anyhow::Ok(sqlx::query_scalar::<_, i64>(count).fetch_one(sql).await?)
    };
    ensure!(letters(&mut sql).await? == 0);
    sqlx::raw_sql("DROP TRIGGER refuse ON attune.dead_letter")
        .execute(&mut sql)
        .await?;
    within(Duration::from_secs(5), "all letters", async || {
        let found = letters(&mut sql).await?;
        ensure!(usize::try_from(found)? == COUNT, "{found}");
        Ok(())
    })
    .await?;
    the_rest_goes_on(system).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_lasting_refused_letters() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), refused_letters).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_lasting_refused_commits() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), refused_commits).await
}

/// A firing that is as large as it may be is larger when the router hands it on.
async fn large_firing(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    api.apply(&limited(LIVE, &noop(), 4)).await?;
    api.apply(&limited("it.large", &noop(), 4)).await?;
    let bus = connect(system).await?;
    let large = firing_of("it.large", LARGEST);
    ensure!(large.len() == LARGEST, "{} bytes", large.len());
    publish(&bus, &Topic::Enforcements, large).await?;
    for _ in 0..3 {
        publish(&bus, &Topic::Enforcements, firing(LIVE, &json!({}))).await?;
    }
    wait_for("what came behind it", async || {
        let executions = api.until_idle(LIVE).await?;
        ensure!(executions.len() == 3, "{} came", executions.len());
        all_are(&executions, "succeeded")
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_lasting_large_firing() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), large_firing).await
}

/// What is for a pool without workers waits in its own queue, holds no slot, and stops nobody.
async fn dead_pool(system: &System) -> anyhow::Result<()> {
    const DEAD: &str = "it.dead";
    const COUNT: usize = 900;
    let api = &system.api;
    api.apply(&limited(LIVE, &noop(), 4)).await?;
    let dead = json!({"ref": DEAD, "run": noop(), "pool": "dead"});
    api.apply(&dead).await?;
    let bus = connect(system).await?;
    for _ in 0..COUNT {
        publish(&bus, &Topic::Enforcements, firing(DEAD, &json!({}))).await?;
    }
    the_rest_goes_on(system).await?;
    let waiting = json!({"queue_length": COUNT, "active_count": 0, "total_completed": 0});
    api.until_queue(DEAD, waiting).await?;
    let holders = api.get(&format!("/api/v1/actions/{DEAD}/holders")).await?;
    let holders = holders.expect(200)?;
    ensure!(holders["holders"] == json!([]), "{holders}");
    let health = api.queue(DEAD).await?["health"].take();
    ensure!(health["state"] != "healthy", "{health}");
    the_rest_goes_on(system).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_lasting_dead_pool() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), dead_pool).await
}

/// Dead letters that take no more stop nobody who has something to put there, and submissions that
/// cannot even be recorded are kept all the same: their owner keeps them itself.
async fn full_dead_letters(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    api.apply(&limited(LIVE, &noop(), 4)).await?;
    // Nothing comes in, whoever takes something out.
    system.broker()?.bound("attune.dead-letters", 0).await?;
    let bus = connect(system).await?;
    for _ in 0..300 {
        publish(&bus, &Topic::Enforcements, firing("it.nobody", &json!({}))).await?;
    }
    the_rest_goes_on(system).await?;
    let mut sql = system.database()?.connect().await?;
    let query = "SELECT count(*) FROM attune.dead_letter WHERE source = 'enforcement.created'";
    wait_for("what was confirmed", async || {
        let kept: i64 = sqlx::query_scalar(query).fetch_one(&mut sql).await?;
        ensure!(kept == 300, "{kept} of 300 are kept");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_lasting_full_dead_letters() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), full_dead_letters).await
}

/// A dispatch has what its submission has and the program and variables of its action: one that
/// would be larger than a message is refused, or ends; it keeps no slot and stops nobody.
async fn large_dispatches(system: &System) -> anyhow::Result<()> {
    const LARGE: &str = "it.large";
    let api = &system.api;
    api.apply(&limited(LIVE, &noop(), 4)).await?;
    let large = json!({"ref": LARGE, "run": noop(), "env": {"PAD": "x".repeat(20_000)}});
    api.apply(&large).await?;
    let parameters = json!({"pad": "x".repeat(LARGEST - 8_000)});
    for _ in 0..45 {
        let body = json!({"action_ref": LARGE, "parameters": parameters});
        // Refused, or accepted and ended later: either is fine, and so is no answer at all.
        let _answer = tokio::time::timeout(Duration::from_secs(5), api.try_submit(&body)).await;
    }
    the_rest_goes_on(system).await?;
    api.until_idle(LARGE).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_lasting_large_dispatches() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), large_dispatches).await
}

/// A hundred thousand wait, or as many as `ATTUNE_TEST_WAITING` says: no slot stays free for longer
/// than when few wait, while the store is compared with the memory, and no daemon grows beyond its
/// bound.
async fn many_waiting(system: &System) -> anyhow::Result<()> {
    const AT_ONCE: usize = 1000;
    const LIMIT: u32 = 10;
    const FEW: usize = 2 * AT_ONCE;
    let waiting = many();
    let api = &system.api;
    let action = |limit: u32| {
        let mut spec = limited("it.many", &json!({"builtin": "sleep"}), limit);
        spec["policy"]["queue"] = json!({"max_length": 2 * waiting});
        spec
    };
    let known = api.apply(&action(LIMIT)).await?;
    let submit = async |count: usize| {
        for _ in 0..count / AT_ONCE {
            let pad = "x".repeat(200);
            let items = std::iter::repeat_n(json!({"seconds": 0.05, "pad": pad}), AT_ONCE);
            api.submit_batch("it.many", items).await?;
        }
        anyhow::Ok(())
    };
    let id = number(&known, "id")?;
    // Some passes of the reconciler long.
    let longest_pause = async || {
        let first = pauses(system, id)?.len();
        let pauses = wait_for("a thousand slots handed on", async || {
            let pauses = pauses(system, id)?;
            ensure!(pauses.len() >= first + 1000, "{} ended", pauses.len());
            Ok(pauses)
        });
        anyhow::Ok(
            pauses.await?[first..]
                .iter()
                .copied()
                .max()
                .unwrap_or_default(),
        )
    };
    submit(FEW).await?;
    let few = longest_pause().await?;
    submit(waiting - FEW).await?;
    let many = longest_pause().await?;
    let bound = bound_ms()?;
    println!(
        "longest pause: {:.1} ms, and {:.1} ms while few wait; the bound is {bound} ms",
        many as f64 / 1e6,
        few as f64 / 1e6
    );
    ensure!(
        many < (bound * 1_000_000).max(3 * few),
        "a slot was free for {} ms; while few wait that takes {} ms",
        many / 1_000_000,
        few / 1_000_000
    );
    memory_was_bounded(system).await
}

/// How many wait in [`many_waiting`].
fn many() -> usize {
    let chosen = std::env::var("ATTUNE_TEST_WAITING").ok();
    chosen.and_then(|text| text.parse().ok()).unwrap_or(100_000)
}

/// How long a slot may be free in [`many_waiting`], in milliseconds: `ATTUNE_TEST_PAUSE_MS`, 50 for
/// a release build on a quiet machine. Otherwise what a debug build beside other tests is allowed,
/// where nothing but a pause of the loop takes so long. A machine that stands still by itself does
/// so too while few wait.
fn bound_ms() -> anyhow::Result<i64> {
    let chosen = std::env::var("ATTUNE_TEST_PAUSE_MS").ok();
    Ok(chosen.map(|text| text.parse()).transpose()?.unwrap_or(400))
}

/// For how long the slots of an action were free, in nanoseconds, one after the other: from the moment
/// at which the broker had the end of a run until the commit that hands its slot on.
fn pauses(system: &System, action: i64) -> anyhow::Result<Vec<i64>> {
    let (mut forwarded, mut ended) = (HashMap::new(), Vec::new());
    for record in read_dir(&system.history())? {
        match record? {
            Record::Forwarded {
                execution_id, t_ns, ..
            } => {
                forwarded.insert(execution_id, t_ns);
            }
            Record::Ended {
                action_id,
                execution_id,
                t_ns,
                ..
            } if action_id.0 == action => ended.push((t_ns, execution_id)),
            _ => {}
        }
    }
    ended.sort_unstable();
    // The broker may confirm after the owner has decided.
    let free = |(end, id): &(i64, _)| forwarded.get(id).map(|begin| (end - begin).max(0));
    Ok(ended.iter().filter_map(free).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_lasting_many_waiting() -> anyhow::Result<()> {
    let setup =
        setup(Wiring::Cluster).set("executor.queue.max_queue_length", &(2 * many()).to_string());
    run(setup, many_waiting).await
}
