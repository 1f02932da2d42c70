use std::collections::BTreeMap;

use attune_core::OwnerId;
use attune_secrets::Keyring;

use super::*;
use crate::owner::OwnerOptions;
use crate::partition::{ClusterBounds, ReconcileBounds};
use crate::queue::QueueConfig;

fn owner() -> Owner {
    Owner::new(OwnerOptions {
        id: OwnerId(uuid::Uuid::from_u128(1)),
        cluster: ClusterBounds {
            partitions: 1,
            max_message_bytes: 1 << 20,
            lane_length: 0,
        },
        queue: QueueConfig::default(),
        lease_ttl: 15_000,
        round_max_items: 1_000,
        step_items: 1_000,
        round_max_bytes: 1 << 20,
        stats_interval: 250,
        stats_refresh: 60_000,
        reconcile: ReconcileBounds {
            worker_grace: 5_000,
            interval: 10_000,
        },
        page_rows: 10_000,
        slice_rows: 2_000,
        operation_rows: 1_000,
        keep_log: false,
        secrets: Keyring::default(),
    })
}

#[test]
fn a_partition_that_is_handed_over_before_the_time_is_known_is_not_taken() {
    use crate::owner::{Call, CallId, Input, Reply};
    let mut owner = owner();
    let mut calls = |now: Millis, input: Input| -> Vec<(CallId, Call)> {
        let outputs = owner.step(now, input).into_iter();
        let calls = outputs.filter_map(|output| match output {
            Output::Call(id, call) => Some((id, call)),
            _ => None,
        });
        calls.collect()
    };
    let mut asked = calls(0, Input::Timer);
    asked.extend(calls(1, Input::HandedOver(vec![PartitionId(0)])));
    let mut looks = 0;
    for now in (2..60_000).step_by(100) {
        assert!(
            !asked
                .iter()
                .any(|(_, call)| matches!(call, Call::Acquire(_))),
            "{asked:?}"
        );
        let mut next = calls(now, Input::Timer);
        for (id, call) in asked {
            looks += u32::from(matches!(call, Call::Look));
            let reply = match call {
                Call::Announce { .. } => Reply::Announced,
                _ => Reply::Failed(crate::owner::Failure {
                    refused: false,
                    words: "it hangs".to_owned(),
                }),
            };
            next.extend(calls(now, Input::Answered(id, reply)));
        }
        asked = next;
    }
    assert!(looks > 0, "it never asked for the time");
}

/// A message that is given back to another owner, because its partition is lost, keeps nobody of
/// another partition from being told.
#[test]
fn what_is_refused_is_told_by_partition_after_what_is_accepted() {
    use crate::owner::DeliveryId;
    use crate::round::{Commit, Tell};
    use crate::stored::Batch;
    let answer = |outcome| {
        let request_id = attune_core::RequestId::fresh();
        let to: Arc<str> = Arc::from("somebody");
        (
            to,
            Answer {
                request_id,
                outcome,
                explanation: None,
            },
        )
    };
    let refusal = || answer(Err(attune_core::Reject::queue_full(1)));
    let accepted = answer(Ok(crate::partition::Accepted {
        execution_id: None,
        status: None,
        position: None,
        repeated: false,
        priority: None,
    }));
    let tell = |answers, acks: &[u64]| Tell {
        answers,
        acks: acks.iter().copied().map(DeliveryId).collect(),
        ..Tell::default()
    };
    let tells = [
        (PartitionId(0), tell(vec![refusal(), accepted], &[1])),
        (PartitionId(1), tell(vec![refusal()], &[2, 3])),
        (PartitionId(2), tell(vec![], &[4])),
    ];
    let batch = Batch::new(OwnerId(uuid::Uuid::nil()), 0);
    let commit = Arc::new(Commit {
        batch,
        decided: Vec::new(),
    });
    let round = Round {
        commit,
        tells: BTreeMap::from(tells),
    };
    let mut owner = owner();
    owner.tell_round(0, round, Vec::new());
    let said: Vec<String> = owner
        .out
        .iter()
        .filter_map(|output| match output {
            Output::Send(Send::Answers(answers)) => Some(format!("{} accepted", answers.len())),
            Output::Ack(ids) => Some(format!("done {ids:?}")),
            Output::Refuse {
                deliveries,
                answers,
            } => Some(format!("done {deliveries:?}, {} refused", answers.len())),
            _ => None,
        })
        .collect();
    let expected = [
        "1 accepted",
        "done [DeliveryId(4)]",
        "done [DeliveryId(1)], 1 refused",
        "done [DeliveryId(2), DeliveryId(3)], 1 refused",
    ];
    assert_eq!(said, expected);
}
