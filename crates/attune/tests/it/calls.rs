//! Commands whose sender waits for the answer, and that end with the broker.

use anyhow::ensure;
use attune_core::PartitionId;
use attune_testkit::{System, Wiring, wait_for};
use serde_json::json;

use crate::support::{limited, noop, number, run, setup};

const REF: &str = "it.call";

/// What the broker has lost between the call and the answer is asked for again, and answered once.
async fn lost(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    api.apply(&limited(REF, &noop(), 1)).await?;
    system.halt("executor").await?;
    let body = json!({"action_ref": REF});
    let asked = api.try_submit(&body);
    let lost = async {
        let PartitionId(partition) = PartitionId::of(REF, 4);
        let queue = format!("attune.partition.{partition:02}.calls");
        wait_for("a call is lost", async || {
            ensure!(system.broker()?.lose(&queue).await? > 0, "none was there");
            Ok(())
        })
        .await?;
        system.start_again("executor").await
    };
    let (answer, ()) = tokio::try_join!(asked, lost)?;
    let accepted = answer.expect(201)?;
    api.until(number(&accepted, "id")?, "succeeded").await?;
    let executions = api.executions(REF).await?;
    ensure!(executions.len() == 1, "{executions:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_lost_call_is_answered() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), lost).await
}
