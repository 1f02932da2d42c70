//! A worker that does not hear that what it was granted ahead is called back, and renews its lease.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use attune_core::PartitionId;
use attune_testkit::{System, wait_for};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::askers::exchange;
use crate::foreign::{lease, retire};
use crate::support::{limited, noop, number, on_both_wirings};

on_both_wirings! {
    gives_nothing_back => embedded_gives_nothing_back, cluster_gives_nothing_back;
}

const REF: &str = "it.lane";
const POOL: &str = "deaf";

/// A life of its own pool that does what it is told here, and nothing else.
struct Deaf<'a> {
    system: &'a System,
    worker: Uuid,
    /// What it was granted and has not ended, in order.
    line: Vec<Value>,
    /// Who granted it.
    owner: Value,
    /// All that it was ever granted: copies change nothing.
    known: BTreeSet<(i64, i64)>,
}

impl Deaf<'_> {
    async fn says(&self, more: Value) -> anyhow::Result<Value> {
        exchange(&self.system.api, lease(self.worker, POOL, 8), more).await
    }

    /// Takes what it is granted by now.
    async fn listens(&mut self) -> anyhow::Result<()> {
        let answer = self.says(json!({"wait_ms": 200})).await?;
        for section in answer["sections"].as_array().context("no sections")? {
            for grant in section["grants"].as_array().into_iter().flatten() {
                self.owner = section["owner"].clone();
                let key = (number(grant, "execution_id")?, number(grant, "attempt")?);
                if self.known.insert(key) {
                    self.line.push(grant.clone());
                }
            }
        }
        Ok(())
    }

    /// The first of them ends well.
    async fn ends_one(&mut self) -> anyhow::Result<()> {
        let grant = self.line.remove(0);
        let end = json!({
            "execution_id": grant["execution_id"], "attempt": grant["attempt"],
            "action_id": grant["action_id"], "status": "succeeded",
        });
        self.says(json!({"completions": [end]})).await?;
        Ok(())
    }

    /// All but the first come back.
    async fn gives_back(&mut self) -> anyhow::Result<()> {
        let back = self.line.split_off(1);
        let returned = back.iter().map(|grant| {
            json!({
                "execution_id": grant["execution_id"], "attempt": grant["attempt"], "why": "called",
            })
        });
        let returned: Vec<Value> = returned.collect();
        let report = json!({"owner": self.owner, "elsewhere": 0, "returned": returned});
        self.says(json!({"reports": [report]})).await?;
        Ok(())
    }
}

async fn pause(system: &System) -> anyhow::Result<Value> {
    let body = json!({"mode": "pause", "who": "ann"});
    let path = format!("/api/v1/pauses/action/{REF}");
    system.api.put(&path, &body).await?.expect(200)
}

async fn clear(system: &System, action_ref: &str) -> anyhow::Result<Value> {
    let body = json!({"kind": "clear", "filter": {"action": action_ref}, "who": "ann"});
    let answer = system.api.post("/api/v1/operations", &body).await?;
    ensure!([200, 202].contains(&answer.status), "{answer:?}");
    Ok(answer.body)
}

/// A pause is not said to be in force, and one operation waits: others of the same partition are carried out. All is
/// as it was asked for when the worker has given back what it had ahead.
async fn gives_nothing_back(system: &System) -> anyhow::Result<()> {
    const COUNT: usize = 40;
    let api = &system.api;
    let mut deaf = Deaf {
        system,
        worker: Uuid::new_v4(),
        line: Vec::new(),
        owner: Value::Null,
        known: BTreeSet::new(),
    };
    deaf.listens().await?;
    let mut lane = limited(REF, &noop(), 1);
    lane["pool"] = json!(POOL);
    api.apply(&lane).await?;
    let home = PartitionId::of(REF, 4);
    let mut names = (0..1_000).map(|number| format!("other.n{number}"));
    let neighbour = names.find(|name| PartitionId::of(name, 4) == home);
    let neighbour = neighbour.context("no neighbour")?;
    api.apply(&limited(&neighbour, &noop(), 1)).await?;
    api.submit_batch(REF, vec![json!({}); COUNT]).await?;
    let mut ended = 0;
    // Until it has more than a slot: nobody is granted ahead before a few runs have ended.
    while deaf.line.len() < 2 {
        deaf.listens().await?;
        if deaf.line.len() == 1 {
            deaf.ends_one().await?;
            ended += 1;
        }
        ensure!(ended < COUNT, "nobody was granted ahead");
    }
    let name = deaf.worker.to_string();
    let applied = pause(system).await?;
    ensure!(applied["applied"] == "pending", "{applied}");
    let why = applied["pending_reason"].as_str().context("no reason")?;
    ensure!(why.contains(&name) && why.contains(REF), "{why}");

    let cleared = clear(system, REF).await?;
    ensure!(cleared["state"] != "done", "{cleared}");
    let later =
        json!({"action_ref": neighbour, "parameters": {}, "not_before": "2100-01-01T00:00:00Z"});
    for _ in 0..3 {
        api.try_submit(&later).await?.expect(201)?;
    }
    let others = clear(system, &neighbour).await?;
    ensure!(others["state"] == "done" && others["done"] == 3, "{others}");
    wait_for("the worker's name in the health of the queue", async || {
        let queue = api.queue(REF).await?;
        let health = queue["health"].to_string();
        let words = format!("waits for worker {name}");
        ensure!(health.contains(&words), "{health}");
        Ok(())
    })
    .await?;

    // What it was granted meanwhile it takes along.
    deaf.listens().await?;
    deaf.gives_back().await?;
    let operation = format!("/api/v1/operations/{}", number(&cleared, "id")?);
    let cleared = wait_for("the end of the operation", async || {
        let shown = api.get(&operation).await?.expect(200)?;
        ensure!(shown["state"] == "done", "{shown}");
        Ok(shown)
    })
    .await?;
    ensure!(
        number(&cleared, "done")? as usize == COUNT - ended - 1,
        "{cleared}"
    );
    let applied = pause(system).await?;
    ensure!(applied["applied"] == "now", "{applied}");
    deaf.ends_one().await?;
    let executions = api.until_idle(REF).await?;
    let succeeded = executions.iter().filter(|it| it["status"] == "succeeded");
    ensure!(succeeded.count() == ended + 1, "{executions:?}");
    retire(system, deaf.worker).await
}
