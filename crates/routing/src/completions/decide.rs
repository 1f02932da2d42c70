//! Whether a completion is one: pure, from its own fields alone.
//!
//! Whether the execution exists, runs, and has this attempt is not asked here; only its owner
//! knows, and it ignores what does not fit.

use attune_core::{Attempt, ExecutionId, PartitionId, Status};
use attune_messages::v1::Completion;

/// Why a completion goes to the dead letters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("`execution_id` {0} is not the id of an execution; take it from the request")]
    ExecutionId(ExecutionId),
    #[error("`attempt` is {0}; attempts count from 1, take it from the request")]
    Attempt(Attempt),
    #[error("`status` is {0}; a run ends as succeeded, failed, timed_out or cancelled")]
    Status(Status),
    #[error("`partition` is {given}, but `execution_id` {id} belongs to {actual}; leave it out")]
    OtherPartition {
        id: ExecutionId,
        given: PartitionId,
        actual: PartitionId,
    },
}

/// The partition whose owner must be told. Whether the cluster has so many is not asked: a listener
/// that is told a wrong number of them must bury nothing for it.
pub(crate) fn decide(completion: &Completion) -> Result<PartitionId, Refusal> {
    let id = completion.execution_id;
    if id.0 <= 0 {
        return Err(Refusal::ExecutionId(id));
    }
    if completion.attempt < Attempt(1) {
        return Err(Refusal::Attempt(completion.attempt));
    }
    if !completion.status.is_reportable() {
        return Err(Refusal::Status(completion.status));
    }
    let actual = id.partition();
    match completion.partition {
        Some(given) if given != actual => Err(Refusal::OtherPartition { id, given, actual }),
        _ => Ok(actual),
    }
}

#[cfg(test)]
mod tests {
    use super::super::mend::tests::completion;
    use super::*;

    #[test]
    fn what_a_worker_may_report_reaches_its_partition() {
        for status in Status::ALL {
            let decided = decide(&Completion {
                status,
                ..completion(3, 7)
            });
            if status.is_reportable() {
                assert_eq!(decided, Ok(PartitionId(3)));
            } else {
                assert_eq!(decided, Err(Refusal::Status(status)));
            }
        }
        let given = Completion {
            partition: Some(PartitionId(3)),
            ..completion(3, 7)
        };
        assert_eq!(decide(&given), Ok(PartitionId(3)));
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        let good = completion(3, 7);
        let id = good.execution_id;
        let cases = [
            (
                Completion {
                    execution_id: ExecutionId(-256),
                    ..good.clone()
                },
                "`execution_id` -256 is not the id of an execution; take it from the request"
                    .to_owned(),
            ),
            (
                Completion {
                    attempt: Attempt(0),
                    ..good.clone()
                },
                "`attempt` is 0; attempts count from 1, take it from the request".to_owned(),
            ),
            (
                Completion {
                    partition: Some(PartitionId(2)),
                    ..good.clone()
                },
                format!("`partition` is 2, but `execution_id` {id} belongs to 3; leave it out"),
            ),
        ];
        for (bad, reason) in cases {
            assert_eq!(decide(&bad).unwrap_err().to_string(), reason);
        }
    }
}
