//! What an owner has decided, as records for the checker of the promises.

use attune_core::policy::TryEnd;
use attune_core::{EndCode, Epoch, ExecutionId, Moved, OrderRule, PartitionId};
use attune_executor::policy::QuotaClaim;
use attune_executor::{Decided, Fact};
use attune_record::{
    Gone, GoneBy, GroupedExecution, HandedOn, MovedExecution, OfEpoch, Operated, PolicyInForce,
    QuotaInForce, RateInForce, Record, Recorder, Retried, now_ns,
};

/// Records what is a fact, if anybody wants to check it.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    recorder: Option<Recorder>,
    /// Rounds recorded.
    rounds: u64,
}

impl Records {
    pub(crate) fn new(recorder: Option<Recorder>) -> Self {
        Self {
            recorder,
            rounds: 0,
        }
    }

    /// Records what one round decided, which is stored now or needs not be.
    pub(crate) fn committed(&mut self, decided: &[Decided]) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        self.rounds += 1;
        let (round, now) = (self.rounds, now_ns());
        let records = decided.iter().flat_map(|of| {
            let facts = of.facts.iter();
            facts.filter_map(move |fact| record(of.partition, of.epoch, fact))
        });
        recorder.record_all(records.map(|record| record.committed(round, now)));
    }

    /// Records what was found in a partition. The bounds of every action there are nothing new.
    pub(crate) fn loaded(&mut self, mut decided: Decided) {
        let is_new = |fact: &Fact| !matches!(fact, Fact::Bounds { .. });
        decided.facts.retain(is_new);
        self.committed(&[decided]);
    }
}

fn quota(claim: &QuotaClaim) -> QuotaInForce {
    QuotaInForce {
        window: claim.window,
        until: claim.until,
        max: claim.max,
        mark: claim.mark,
        key: claim.key,
    }
}

fn record(partition: PartitionId, epoch: Epoch, fact: &Fact) -> Option<Record> {
    let (round, t_ns) = (0, now_ns());
    Some(match fact {
        Fact::Acquired { partition } => Record::Acquired {
            partition: *partition,
            epoch,
            pid: None,
            t_ns,
        },
        Fact::Line { .. } | Fact::Paused { .. } | Fact::Refused { .. } | Fact::Asked { .. } => {
            return None;
        }
        Fact::Lost => Record::Lost(OfEpoch {
            partition,
            epoch,
            t_ns,
        }),
        Fact::Fenced => Record::Fenced(OfEpoch {
            partition,
            epoch,
            t_ns,
        }),
        Fact::Policies { set_version } => Record::Policy(PolicyInForce {
            partition,
            set_version: *set_version,
            epoch,
            round,
            t_ns,
        }),
        Fact::Bounds { action_id, limits } => Record::Limit {
            action_id: *action_id,
            limit: limits.max_concurrent,
            group_limit: limits.group_limit(),
            demands: limits.demands(),
            max_length: Some(limits.max_length),
            epoch,
            round,
            t_ns,
        },
        Fact::Held {
            execution_id,
            action_id,
            attempt,
            kept_until,
            ahead,
        } => Record::Held {
            ahead: *ahead,
            execution_id: *execution_id,
            action_id: *action_id,
            attempt: *attempt,
            kept_until: *kept_until,
            epoch,
            round,
            t_ns,
        },
        Fact::Accepted {
            execution_id,
            action_id,
            priority,
            request_id,
            status,
            not_before,
            at,
            demand,
            quotas,
            asker: _,
        } => Record::Accepted {
            execution_id: *execution_id,
            action_id: *action_id,
            priority: *priority,
            request_id: *request_id,
            status: *status,
            delayed: not_before.is_some(),
            at: Some(*at),
            demand: *demand,
            quotas: quotas.iter().map(quota).collect(),
            epoch,
            round,
            t_ns,
        },
        Fact::Grouped {
            execution_id,
            action_id,
            demand,
        } => Record::Grouped(GroupedExecution {
            execution_id: *execution_id,
            action_id: *action_id,
            demand: *demand,
            epoch,
            round,
            t_ns,
        }),
        Fact::HandedOn {
            execution_id,
            action_id,
            attempt,
        } => Record::HandedOn(HandedOn {
            execution_id: *execution_id,
            action_id: *action_id,
            attempt: *attempt,
            epoch,
            round,
            t_ns,
        }),
        Fact::Granted {
            execution_id,
            action_id,
            attempt,
            grant_no,
            limit,
            order,
            group_limit,
            demands,
            rate,
            interval,
            weights,
            at,
            worker,
            ahead,
        } => Record::Granted {
            worker: Some(*worker),
            ahead: *ahead,
            execution_id: *execution_id,
            action_id: *action_id,
            attempt: *attempt,
            grant_no: *grant_no,
            limit: *limit,
            order: *order,
            group_limit: *group_limit,
            demands: *demands,
            rate: rate.map(|it| RateInForce {
                max: it.rate.max,
                window_ms: it.rate.window,
                mark: it.mark,
            }),
            interval_ms: interval.map(|interval| interval.window),
            weights: weights.clone(),
            at: Some(*at),
            epoch,
            round,
            t_ns,
        },
        Fact::Ended {
            execution_id,
            action_id,
            attempt,
            status,
            code,
            newcomer,
        } => Record::Ended {
            execution_id: *execution_id,
            action_id: *action_id,
            attempt: *attempt,
            status: *status,
            gone: gone(*code, *newcomer),
            epoch,
            round,
            t_ns,
        },
        Fact::KeptOn {
            execution_id,
            action_id,
            attempt,
            until,
        } => Record::Revoked {
            execution_id: *execution_id,
            action_id: *action_id,
            attempt: *attempt,
            retried: Some(Retried {
                end: TryEnd::WorkerLost,
                not_before: *until,
                keeps_slot: true,
            }),
            never_begun: true,
            epoch,
            round,
            t_ns,
        },
        Fact::Revoked {
            execution_id,
            action_id,
            attempt,
            until,
            never_begun,
        } => Record::Revoked {
            never_begun: *never_begun,
            execution_id: *execution_id,
            action_id: *action_id,
            attempt: *attempt,
            retried: until.map(|not_before| Retried {
                end: TryEnd::WorkerLost,
                not_before,
                keeps_slot: false,
            }),
            epoch,
            round,
            t_ns,
        },
        Fact::Retried {
            execution_id,
            action_id,
            attempt,
            end,
            not_before,
            keeps_slot,
        } => Record::Revoked {
            execution_id: *execution_id,
            action_id: *action_id,
            attempt: *attempt,
            retried: Some(Retried {
                end: *end,
                not_before: *not_before,
                keeps_slot: *keeps_slot,
            }),
            never_begun: false,
            epoch,
            round,
            t_ns,
        },
        Fact::Moved(Moved {
            id,
            action_id,
            priority,
            front,
        }) => Record::Moved(MovedExecution {
            execution_id: *id,
            action_id: *action_id,
            priority: *priority,
            front: *front,
            epoch,
            round,
            t_ns,
        }),
        Fact::Operated {
            operation,
            kind,
            progress,
            done,
            skipped,
        } => Record::Operated(Box::new(Operated {
            operation: *operation,
            what: (*kind).to_owned(),
            partition,
            progress: *progress,
            done: done.clone(),
            skipped: skipped.clone(),
            epoch,
            round,
            t_ns,
        })),
        Fact::Stale {
            execution_id,
            attempt,
        } => Record::StaleCompletion {
            execution_id: *execution_id,
            attempt: *attempt,
            t_ns,
        },
        Fact::Totals {
            stats,
            pool_closed,
            paused,
            regrouping,
            goes_on,
            rate_until,
        } => Record::Totals {
            action_id: stats.action_id,
            enqueued: stats.total_enqueued,
            completed: stats.total_completed,
            cancelled: stats.total_cancelled,
            expired: stats.total_expired,
            waiting: stats.queue_length,
            active: stats.active_count,
            pool_closed: *pool_closed,
            paused: *paused,
            regrouping: *regrouping,
            goes_on: *goes_on,
            rate_until: *rate_until,
            epoch,
            round,
            t_ns,
        },
    })
}

/// Who went for whom.
fn gone(code: Option<EndCode>, newcomer: Option<(ExecutionId, OrderRule)>) -> Option<Gone> {
    let (newcomer, order) = newcomer?;
    let by = match code? {
        EndCode::Dropped => GoneBy::Dropped,
        EndCode::Replaced => GoneBy::Replaced,
        EndCode::Expired
        | EndCode::OutOfMemory
        | EndCode::TooManyProcesses
        | EndCode::SecretUnavailable
        | EndCode::Rejected(_) => return None,
    };
    Some(Gone {
        by,
        newcomer,
        order,
    })
}

#[cfg(test)]
mod tests {
    use attune_core::{ActionId, OrderRule};
    use attune_executor::policy::QueueLimits;
    use attune_record::read_dir;

    use super::*;

    /// A limit that changes in a round that stores nothing is in force all the same.
    #[test]
    fn a_changed_limit_is_recorded_and_one_that_was_loaded_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder::create(dir.path(), "executor").unwrap();
        let mut records = Records::new(Some(recorder.clone()));
        let bounds = |limit| Decided {
            partition: PartitionId(0),
            epoch: Epoch(1),
            number: 0,
            facts: vec![Fact::Bounds {
                action_id: ActionId(7),
                limits: QueueLimits {
                    max_concurrent: Some(limit),
                    max_length: 10,
                    timeout_seconds: 60,
                    order: OrderRule::Priority,
                    extra: None,
                },
            }],
            goes_on: false,
        };
        records.loaded(bounds(6));
        records.committed(&[bounds(2)]);
        recorder.flush().unwrap();
        let limits: Vec<_> = read_dir(dir.path())
            .unwrap()
            .filter_map(|record| match record.unwrap() {
                Record::Limit { limit, .. } => Some(limit),
                _ => None,
            })
            .collect();
        assert_eq!(limits, [Some(2)]);
    }
}
