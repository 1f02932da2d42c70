//! What clients ask of a partition: to accept an execution, to end one.

use std::sync::Arc;

use attune_core::{
    Action, ActionId, ActionRef, Attempt, ExecutionId, PartitionId, Reject, RejectCode, RequestId,
    Seq, Status, Submission,
};
use attune_messages::v1::{Accepted, Answer, AnswerOutcome, OnReject};
use attune_store::{End, KnownRequest, NewExecution, Outcome, Update};

use crate::action_queue::{Entered, Granted, Millis, Waiting};
use crate::event::{Counter, Dispatch, Effect};
use crate::partition_core::PartitionCore;
use crate::policy_enforcer::limits_of;

impl PartitionCore {
    pub(crate) fn submit(
        &mut self,
        now: Millis,
        request_id: RequestId,
        submission: Submission,
        on_reject: OnReject,
        reply_to: Option<Arc<str>>,
        out: &mut Vec<Effect>,
    ) {
        let digest = submission.digest();
        if let Some(known) = self.known.get(&request_id) {
            let outcome = if known.digest == digest {
                out.push(Effect::Count(Counter::Repeated));
                AnswerOutcome::Accepted(Accepted {
                    execution_id: Some(known.execution_id),
                    status: Some(known.status),
                    position: None,
                    repeated: true,
                })
            } else {
                out.push(Effect::Count(Counter::Rejected));
                let words = format!(
                    "request id {request_id} was used before with a different body, for execution {}",
                    known.execution_id
                );
                AnswerOutcome::Rejected(Reject::new(RejectCode::Conflict, words))
            };
            return answer(reply_to, request_id, outcome, out);
        }
        match self.accept(now, request_id, digest, submission, out) {
            Ok(accepted) => {
                answer(reply_to, request_id, AnswerOutcome::Accepted(accepted), out);
            }
            Err(refused) => {
                let (submission, reject) = *refused;
                out.push(Effect::Count(Counter::Rejected));
                if on_reject == OnReject::Record {
                    self.record_rejection(request_id, digest, submission, &reject, out);
                }
                answer(reply_to, request_id, AnswerOutcome::Rejected(reject), out);
            }
        }
    }

    /// Checks what can be checked without a place in the order.
    fn admissible(&self, submission: &Submission) -> Result<Arc<Action>, Reject> {
        submission.check()?;
        let partition = PartitionId::of(&submission.action_ref, self.partition_count);
        if partition != self.partition {
            let words = format!(
                "`{}` belongs to partition {partition} of {}, not to {}",
                submission.action_ref, self.partition_count, self.partition
            );
            return Err(Reject::new(RejectCode::WrongPartition, words));
        }
        self.refs
            .get(&submission.action_ref)
            .and_then(|id| self.actions.get(id))
            .cloned()
            .ok_or_else(|| Reject::unknown_action(&submission.action_ref))
    }

    fn accept(
        &mut self,
        now: Millis,
        request_id: RequestId,
        digest: i64,
        submission: Submission,
        out: &mut Vec<Effect>,
    ) -> Result<Accepted, Box<(Submission, Reject)>> {
        let action = match self.admissible(&submission) {
            Ok(action) => action,
            Err(reject) => return Err(Box::new((submission, reject))),
        };
        let seq = Seq::new(self.epoch, self.next_place);
        let id = ExecutionId::new(self.partition, seq);
        let waiting = Waiting {
            execution_id: id,
            seq,
            enqueued_at: now,
            attempt: Attempt(0),
            delayed: submission.not_before.is_some(),
        };
        let not_before = submission
            .not_before
            .map(|time| time.timestamp_millis())
            .filter(|time| *time > now);
        let priority = submission.priority;
        let limits = || limits_of(&action.spec, self.queues.config());
        let (entered, delayed_position) = self.queues.with_queue(action.id, limits, |queue| {
            if let Some(time) = not_before {
                let position = queue.len() as u64;
                return (
                    queue.enter_delayed(priority, waiting, time).map(|()| None),
                    position,
                );
            }
            (queue.enter(priority, waiting).map(Some), 0)
        });
        let entered = match entered {
            Ok(entered) => entered.unwrap_or(Entered::Queued {
                position: delayed_position,
            }),
            Err(full) => return Err(Box::new((submission, Reject::queue_full(full.max_length)))),
        };
        self.next_place += 1;
        let (status, attempt, position) = match entered {
            Entered::Granted(attempt) => (Status::Requested, attempt, None),
            Entered::Queued { position } => (Status::Queued, Attempt(0), Some(position)),
        };
        let grant_no = (status == Status::Requested).then(|| self.number_grant());
        self.known.insert(
            request_id,
            KnownRequest {
                request_id,
                execution_id: id,
                digest,
                status,
            },
        );
        let new = NewExecution {
            id,
            action_id: action.id,
            request_id,
            digest,
            submission,
            status,
            attempt,
            grant_no,
        };
        self.log_accepted(&new, not_before.is_some());
        out.push(Effect::Insert(Box::new(new)));
        out.push(Effect::Count(Counter::Accepted));
        if let Some(grant_no) = grant_no {
            self.watch_grant(now, &action, id, attempt, out);
            let dispatch = Dispatch {
                execution_id: id,
                attempt,
                action: Arc::clone(&action),
            };
            self.log_granted(&dispatch, grant_no);
            out.push(Effect::Count(Counter::Granted));
            out.push(Effect::Dispatch(dispatch));
        }
        out.push(Effect::Touched(action.id));
        self.schedule(action.id);
        Ok(Accepted {
            execution_id: Some(id),
            status: Some(status),
            position,
            repeated: false,
        })
    }

    fn watch_grant(
        &mut self,
        now: Millis,
        action: &Action,
        execution_id: ExecutionId,
        attempt: Attempt,
        out: &mut Vec<Effect>,
    ) {
        let granted = Granted {
            execution_id,
            attempt,
            delayed: false,
        };
        self.queues.with_existing(action.id, |queue| {
            self.detector.granted(now, action, queue, granted, out);
        });
    }

    /// Keeps what was refused although its sender was told that it is safe: in the history when
    /// the action is known, among the dead letters otherwise.
    fn record_rejection(
        &mut self,
        request_id: RequestId,
        digest: i64,
        submission: Submission,
        reject: &Reject,
        out: &mut Vec<Effect>,
    ) {
        let known = ActionRef::check(&submission.action_ref).is_ok() && submission.check().is_ok();
        let action_id = self
            .refs
            .get(&submission.action_ref)
            .copied()
            .filter(|_| known);
        let Some(action_id) = action_id else {
            let (submission, reject) = (Box::new(submission), reject.clone());
            out.push(Effect::DeadLetter { submission, reject });
            return;
        };
        let id = ExecutionId::new(self.partition, Seq::new(self.epoch, self.next_place));
        self.next_place += 1;
        let status = Status::Rejected;
        self.known.insert(
            request_id,
            KnownRequest {
                request_id,
                execution_id: id,
                digest,
                status,
            },
        );
        let new = NewExecution {
            id,
            action_id,
            request_id,
            digest,
            submission,
            status,
            attempt: Attempt(0),
            grant_no: None,
        };
        self.log_accepted(&new, false);
        self.log_ended(action_id, id, new.attempt, status);
        out.push(Effect::Insert(Box::new(new)));
        let outcome = Outcome::of(status, Some(reject.to_string()));
        out.push(Effect::End(Box::new(End { id, outcome })));
    }

    pub(crate) fn cancel(
        &mut self,
        now: Millis,
        execution_id: ExecutionId,
        out: &mut Vec<Effect>,
    ) -> AnswerOutcome {
        let seq = execution_id.seq();
        let accepted = |status| {
            AnswerOutcome::Accepted(Accepted {
                execution_id: Some(execution_id),
                status,
                position: None,
                repeated: false,
            })
        };
        if execution_id.partition() != self.partition {
            // Waiting executions are found by their place, which other partitions have as well.
            let words = format!(
                "execution {execution_id} does not belong to partition {}",
                self.partition
            );
            return AnswerOutcome::Rejected(Reject::new(RejectCode::WrongPartition, words));
        }
        let ids: Vec<ActionId> = self.actions.keys().copied().collect();
        for action_id in ids {
            let queues = self.queues.clone();
            let found = queues.with_existing(action_id, |queue| {
                if let Some(attempt) = queue.request_cancel(execution_id) {
                    return Some(Some(attempt));
                }
                let cancelled = queue.cancel_waiting(seq)?;
                self.log_ended(
                    action_id,
                    execution_id,
                    cancelled.attempt,
                    Status::Cancelled,
                );
                Some(None)
            });
            match found.flatten() {
                Some(Some(attempt)) => {
                    out.push(Effect::Update(Update {
                        id: execution_id,
                        status: None,
                        attempt,
                        grant_no: None,
                        cancel_requested: true,
                    }));
                    out.push(Effect::CancelRun {
                        execution_id,
                        attempt,
                    });
                    return accepted(None);
                }
                Some(None) => {
                    let outcome = Outcome::of(
                        Status::Cancelled,
                        Some("cancelled while it waited for a slot".to_owned()),
                    );
                    out.push(Effect::End(Box::new(End {
                        id: execution_id,
                        outcome,
                    })));
                    out.push(Effect::Count(Counter::Cancelled));
                    self.serve(now, action_id, out);
                    return accepted(Some(Status::Cancelled));
                }
                None => {}
            }
        }
        let words = format!("execution {execution_id} neither waits nor runs");
        AnswerOutcome::Rejected(Reject::new(RejectCode::AlreadyEnded, words))
    }
}

/// Answers, if somebody waits for it.
pub(crate) fn answer(
    reply_to: Option<Arc<str>>,
    request_id: RequestId,
    outcome: AnswerOutcome,
    out: &mut Vec<Effect>,
) {
    if let Some(reply_to) = reply_to {
        out.push(Effect::Answer {
            reply_to,
            answer: Answer {
                request_id,
                outcome,
            },
        });
    }
}
