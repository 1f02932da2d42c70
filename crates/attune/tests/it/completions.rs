//! Completions that come twice, late, or for what nobody knows. The embedded wiring has the same
//! scenario inside its process, beside `roles.rs`.

use attune_bus::{Bus as _, Outgoing, Topic};
use attune_testkit::{System, Wiring, duplicate_completions};

use crate::stranger::connect;
use crate::support::{run, setup};

async fn duplicates(system: &System) -> anyhow::Result<()> {
    let bus = connect(system).await?;
    let publish = async |messages: Vec<_>| {
        let outgoing = |(id, body)| Outgoing::new(Topic::Completed, id, body);
        bus.publish(messages.into_iter().map(outgoing).collect())
            .await?;
        Ok(())
    };
    let stale = async || system.metric("executor_completions_stale_total").await;
    duplicate_completions(&system.api, publish, stale).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_duplicate_completions() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster), duplicates).await
}
