//! Several executors that share the partitions of a cluster.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use attune_testkit::{Proxy, System, Wiring, wait_for};
use serde_json::{Value, json};

use crate::restarts::{each_ran_once, go_through};
use crate::support::{all_are, limited, noop, run, setup};

/// Whatever becomes of executors, every execution runs exactly once, in order and within the
/// limits: one is killed, one is asked to stop and comes again, and the dead one comes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_of_three_executors() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster).executors(3), lost_and_stopped).await
}

async fn lost_and_stopped(system: &System) -> anyhow::Result<()> {
    until_owners(system, &["executor-1", "executor-2", "executor-3"]).await?;
    let steps = ["kill", "stop", "start"].map(str::to_owned);
    let disturb = async |step: &str| match step {
        "kill" => system.kill("executor-1").await,
        "stop" => {
            system.restart("executor-2").await?;
            until_owners(system, &["executor-2", "executor-3"]).await
        }
        _ => {
            system.start_again("executor-1").await?;
            until_owners(system, &["executor-1", "executor-2", "executor-3"]).await
        }
    };
    let batches = go_through(system, 20, &steps, disturb).await?;
    each_ran_once(system, batches).await
}

/// Waits until the partitions are shared evenly by these executors.
async fn until_owners(system: &System, names: &[&str]) -> anyhow::Result<()> {
    wait_for("even shares", async || {
        let mut database = system.database()?.connect().await?;
        let owners: Vec<String> = sqlx::query_scalar(
            "SELECT owner_name FROM attune.partition_lease
             WHERE owner IS NOT NULL AND expires_at > clock_timestamp()",
        )
        .fetch_all(&mut database)
        .await?;
        let mut shares: BTreeMap<&str, usize> = BTreeMap::new();
        for name in &owners {
            *shares.entry(name).or_default() += 1;
        }
        let (least, most) = (shares.values().min(), shares.values().max());
        ensure!(
            shares.keys().eq(names.iter()) && most.context("none")? - least.context("none")? <= 1,
            "{shares:?}"
        );
        Ok(())
    })
    .await
}

/// An executor that loses the broker and not the database hands its partitions over, says so, and
/// gets its share back afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_an_executor_without_a_broker_makes_way() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster).executors(2), cut_off).await
}

async fn cut_off(system: &System) -> anyhow::Result<()> {
    let broker = system.broker()?.url();
    let way = Proxy::start(broker).await?;
    system.kill("executor-2").await?;
    until_owners(system, &["executor-1"]).await?;
    let by_proxy = way.url(broker)?;
    system
        .start_with("executor-2", &[("broker.url", &by_proxy)])
        .await?;
    until_owners(system, &["executor-1", "executor-2"]).await?;

    way.cut();
    until_owners(system, &["executor-1"]).await?;
    let cluster = system.api.get("/api/v1/cluster").await?.body;
    let executors = cluster["executors"].as_array().context("no executors")?;
    let cut_off = executors.iter().filter(|row| row["cut_off"] == true);
    let cut_off: Vec<&Value> = cut_off.map(|row| &row["name"]).collect();
    ensure!(cut_off == ["executor-2"], "{cluster}");
    let (_, ran, _) = system.client(&["cluster"]).await?;
    ensure!(ran.contains("cut off"), "{ran}");
    // Every partition is served: nobody waits for what was with the other one.
    for number in 0..8 {
        let action_ref = format!("it.cut{number}");
        system.api.apply(&limited(&action_ref, &noop(), 1)).await?;
        system
            .api
            .submit_batch(&action_ref, [json!({}), json!({})])
            .await?;
        all_are(&system.api.until_idle(&action_ref).await?, "succeeded")?;
    }

    way.restore();
    until_owners(system, &["executor-1", "executor-2"]).await
}

/// How long queues stand still when an executor is restarted. Run it with
/// `cargo nextest run -p attune --run-ignored only pauses --no-capture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, does not test"]
async fn cluster_hand_over_pauses() -> anyhow::Result<()> {
    let setup = setup(Wiring::Cluster).executors(3).set("log.level", "info");
    run(setup, async |system: &System| {
        let names: Vec<String> = (0..12).map(|n| format!("executor-{}", n % 3 + 1)).collect();
        let all = ["executor-1", "executor-2", "executor-3"];
        let restart = async |name: &str| {
            system.restart(name).await?;
            until_owners(system, &all).await
        };
        let batches = go_through(system, 20, &names, restart).await?;
        for batch in &batches {
            let mut runs = batch.recording.intervals()?;
            runs.sort_by_key(|run| run.start_ns);
            let mut pauses: Vec<_> = runs
                .windows(2)
                .filter_map(|pair| Some((pair[1].start_ns - pair[0].end_ns?) / 1000))
                .collect();
            pauses.sort_unstable_by(|a, b| b.cmp(a));
            println!(
                "{} runs; the longest pauses in µs: {:?}",
                runs.len(),
                &pauses[..30.min(pauses.len())]
            );
        }
        each_ran_once(system, batches).await
    })
    .await
}
