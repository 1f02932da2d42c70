//! Whether the rest goes on while one thing cannot: a pool, the dead letters, a client.

use std::time::Duration;

use attune_core::PartitionId;
use rand::rngs::StdRng;
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::actions::PARTITIONS;
use super::nemesis::{Fault, Rig};

/// How long an execution that nothing stands in the way of may take from its submission to its
/// end, on a machine that is busy with everything else.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long servers must have been left alone before that for this to be judged.
const QUIET: Duration = Duration::from_secs(10);

/// The names of one action for each partition.
pub(crate) fn action_refs() -> Vec<String> {
    let of = |partition| {
        let mut names = (0..).map(|number: u32| format!("chaos.probe{number}"));
        names.find(|name| PartitionId::of(name, PARTITIONS) == PartitionId(partition))
    };
    (0..PARTITIONS).filter_map(of).collect()
}

/// Asks for one execution in each partition and complains of those that do not end, unless a
/// server was disturbed as well.
pub(crate) async fn goes_on(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<()> {
    let probes = rig.shared.actions.iter().filter(|it| it.is_probe());
    let submissions: Vec<Value> = probes
        .map(|action| action.submission(Uuid::now_v7(), random))
        .collect();
    let looks = submissions.iter().map(|submission| ends(rig, submission));
    let outcomes = futures_util::future::join_all(looks).await;
    let mut stuck = Vec::new();
    for (submission, outcome) in submissions.iter().zip(outcomes) {
        if !outcome? {
            stuck.push(submission["action_ref"].to_string());
        }
    }
    if !stuck.is_empty() && rig.servers_are_quiet_for(QUIET + PATIENCE) {
        let text = format!(
            "I6: during {}, executions of other actions did not end within {PATIENCE:?}: {}",
            fault.name,
            stuck.join(", ")
        );
        rig.say.line(&text);
        rig.fleet.surprises.lock().await.push(text);
    }
    Ok(())
}

/// Whether it has ended within the time.
async fn ends(rig: &Rig, submission: &Value) -> anyhow::Result<bool> {
    let api = rig.shared.api.clone();
    let request_id: Uuid = submission["request_id"].as_str().unwrap_or("").parse()?;
    let ledger = &rig.shared.ledger;
    ledger.invoke(submission)?;
    let deadline = Instant::now() + PATIENCE;
    let answer = tokio::time::timeout_at(deadline, api.try_submit(submission)).await;
    let id = match &answer {
        Ok(Ok(answer)) => answer.body["id"].as_i64(),
        Ok(Err(_)) | Err(_) => None,
    };
    let Some(id) = id else {
        ledger.unknown(request_id, "no answer")?;
        return Ok(false);
    };
    ledger.accepted(request_id, id)?;
    loop {
        let state = tokio::time::timeout_at(deadline, api.execution(id)).await;
        let Ok(state) = state else { return Ok(false) };
        let is_over = state.is_ok_and(|state| {
            let status = state["status"].as_str();
            !matches!(status, Some("queued" | "requested" | "running") | None)
        });
        if is_over {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(100)).await; // poll
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_has_one() {
        let names = action_refs();
        let partitions = names.iter().map(|name| PartitionId::of(name, PARTITIONS));
        let all = (0..PARTITIONS).map(PartitionId);
        assert_eq!(partitions.collect::<Vec<_>>(), all.collect::<Vec<_>>());
    }
}
