//! What clients ask of a partition: to accept an execution, to end one.

use std::sync::Arc;

use attune_core::secret::masked_text;
use attune_core::{
    Action, ActionId, ActionRef, Attempt, EndCode, ExecutionId, Outcome, PartitionId, RawValue,
    Reject, RejectCode, RequestId, Seq, Status, Submission,
};

use super::{Accepted, Answer, ENVELOPE_BYTES, Effect, Letter, OnReject, Partition, Submit};
use crate::counters::Counter;
use crate::fact::Fact;
use crate::happened::Happened;
use crate::policy::{QuotaClaim, Share};
use crate::queue::{ActionQueue, Millis, Newcomer, Waiting};
use crate::stored::{End, KnownRequest, NewExecution};

impl Partition {
    pub(super) fn submit(
        &mut self,
        now: Millis,
        mut submit: Submit,
        known: Option<KnownRequest>,
        reply_to: Option<Arc<str>>,
        out: &mut Vec<Effect>,
    ) {
        let request_id = submit.request_id;
        let sealed = self.seal(&mut submit);
        let known = self.accepted.get(&request_id).copied().or(known);
        if let Some(known) = known {
            let outcome = repeated(&known, submit.digest, out);
            if let Err(reject) = &outcome
                && reject.code == RejectCode::Conflict
                && submit.on_reject == OnReject::Record
            {
                // It is another one under a request id that is taken: only a letter can keep it.
                out.push(Effect::DeadLetter(letter(&submit, reject)));
            }
            return answer(reply_to, request_id, outcome, out);
        }
        let mut outcome = sealed.and_then(|()| self.accept(now, &submit, out));
        if let Err(reject) = &mut outcome {
            let action_id = self.refs.get(&submit.submission.action_ref).copied();
            let code = reject.code;
            self.note(|| Fact::Refused {
                request_id,
                action_id,
                code,
            });
            self.was_refused(action_id, request_id, reject, out);
            out.push(Effect::Count(Counter::Rejected));
            if submit.on_reject == OnReject::Record {
                // Its request id is taken from now on: asking again under it never helps.
                reject.retry_after_seconds = None;
                self.record_rejection(now, &submit, reject, out);
            }
        }
        answer(reply_to, request_id, outcome, out);
    }

    /// Seals what is secret and comes unsealed, as in rule firings: nothing of it is written down, and what the
    /// request is known by is what is stored.
    fn seal(&self, submit: &mut Submit) -> Result<(), Reject> {
        let submission = &submit.submission;
        let marks = self.refs.get(&submission.action_ref);
        let Some(marks) = marks.and_then(|id| self.marks.get(id)) else {
            return Ok(());
        };
        let (parameters, outcome) = {
            let plain = &submission.parameters;
            match self.secrets.seal(&submission.action_ref, marks, plain) {
                Ok(None) => return Ok(()),
                Ok(Some(sealed)) => (sealed, Ok(())),
                Err(reject) => {
                    let hidden = masked_text(plain.get(), Some(marks));
                    (
                        RawValue::from_string(hidden).unwrap_or_default(),
                        Err(reject),
                    )
                }
            }
        };
        Arc::make_mut(&mut submit.submission).parameters = parameters;
        submit.digest = submit.submission.digest();
        outcome
    }

    /// Checks what can be checked without a place in the order.
    fn admissible(&self, submission: &Submission) -> Result<Arc<Action>, Reject> {
        submission.check()?;
        let partition = PartitionId::of(&submission.action_ref, self.cluster.partitions);
        if partition != self.id {
            let words = format!(
                "`{}` belongs to partition {partition} of {}, not to {}",
                submission.action_ref, self.cluster.partitions, self.id
            );
            return Err(Reject::new(RejectCode::WrongPartition, words));
        }
        let action = self
            .refs
            .get(&submission.action_ref)
            .and_then(|id| self.actions.get(id))
            .cloned()
            .ok_or_else(|| Reject::unknown_action(&submission.action_ref))?;
        self.check_size(submission, &action)?;
        self.check_draining(&action)?;
        Ok(action)
    }

    /// What cannot be dispatched in one message must not be accepted: nobody could ever run it.
    fn check_size(&self, submission: &Submission, action: &Action) -> Result<(), Reject> {
        let parameters = submission.parameters.get().len();
        let definition = self.definition_bytes.get(&action.id).copied().unwrap_or(0);
        let most = self.cluster.max_message_bytes;
        if parameters + definition + ENVELOPE_BYTES <= most {
            return Ok(());
        }
        let room = most.saturating_sub(definition + ENVELOPE_BYTES);
        let words = format!(
            "the parameters have {parameters} bytes; with the definition of `{}` a message has \
             room for {room}: make them smaller, or raise broker.max_message_bytes ({most})",
            submission.action_ref
        );
        Err(Reject::field("parameters", words))
    }

    fn accept(
        &mut self,
        now: Millis,
        submit: &Submit,
        out: &mut Vec<Effect>,
    ) -> Result<Accepted, Reject> {
        let submission = &submit.submission;
        let action = self.admissible(submission)?;
        self.askers.admit(submit.wait_bound)?;
        let seq = Seq::new(self.epoch, self.next_place);
        let id = ExecutionId::new(self.id, seq);
        let waiting = Waiting {
            execution_id: id,
            seq,
            enqueued_at: now,
            eligible_at: now,
            attempt: Attempt(0),
            unbegun: 0,
            delayed: submission.not_before.is_some(),
            front: false,
            share: Share::default(),
        };
        let rule = self.demands.get(&action.id);
        let policies = Arc::clone(&self.policies);
        let user = policies.user(submission.requested_by.as_deref());
        let tier = user.and_then(|user| user.tier.as_deref());
        let words = submission.words().of_tier(tier);
        let demand = rule.map(|rule| rule.demand(&words));
        let demand = demand.transpose()?;
        let not_before = submission
            .not_before
            .map(|time| time.timestamp_millis())
            .filter(|time| *time > now);
        let priority = action.spec.policy.priority.of(submission.priority, &words);
        let priority = user.map_or(priority, |user| user.lowered(priority));
        let claims = self.check_counted(
            now,
            &action,
            (&words, demand.as_ref()),
            not_before.is_some(),
        )?;
        let newcomer = Newcomer {
            priority,
            waiting,
            demand: demand.as_ref(),
            not_before,
            most_replaced: self.may_replace(action.id),
        };
        let position = self.take_in(now, &action, submission, &newcomer, out)?;
        self.count_acceptance(action.id, &claims);
        self.next_place += 1;
        self.index.insert(id, action.id);
        if let Some(bound) = submit.wait_bound {
            self.askers.put(id, bound.asker, true);
        }
        let mut new = new_execution(submit, id, action.id, Status::Queued);
        new.demand = demand.map(Box::new);
        // Its policy decides, and may be another one later. Without a word about it nothing is copied.
        if new.submission.priority.unwrap_or_default() != priority {
            Arc::make_mut(&mut new.submission).priority = Some(priority);
        }
        self.note(|| accepted_fact(now, &new, not_before, claims));
        out.push(Effect::Insert(new));
        out.push(Effect::Count(Counter::Accepted));
        let what = Happened::Accepted {
            execution_id: id,
            position,
        };
        self.happened(&action, what, out);
        let granted_before = self.next_grant;
        self.serve(now, action.id, out);
        // Most find no slot free: only when somebody was granted one is it asked who.
        let is_granted = self.next_grant != granted_before && self.holds(id).is_some();
        let (status, position) = if is_granted {
            (Status::Requested, None)
        } else {
            (Status::Queued, Some(position))
        };
        self.know(submit, id, status);
        Ok(Accepted {
            execution_id: Some(id),
            status: Some(status),
            position,
            repeated: false,
            priority: Some(priority),
        })
    }

    /// Remembers a request for the rest of the round: the store does not know it yet.
    fn know(&mut self, submit: &Submit, id: ExecutionId, status: Status) {
        let known = KnownRequest {
            request_id: submit.request_id,
            execution_id: id,
            digest: submit.digest,
            status,
        };
        self.accepted.insert(submit.request_id, known);
    }

    /// Keeps what was refused although its sender was told that it is safe: in the history when
    /// the action is known, among the dead letters otherwise.
    fn record_rejection(
        &mut self,
        now: Millis,
        submit: &Submit,
        reject: &Reject,
        out: &mut Vec<Effect>,
    ) {
        let submission = &submit.submission;
        let fits = ActionRef::check(&submission.action_ref).is_ok() && submission.check().is_ok();
        let action_id = self
            .refs
            .get(&submission.action_ref)
            .copied()
            .filter(|_| fits);
        let Some(action_id) = action_id else {
            out.push(Effect::DeadLetter(letter(submit, reject)));
            return;
        };
        let id = ExecutionId::new(self.id, Seq::new(self.epoch, self.next_place));
        self.next_place += 1;
        let status = Status::Rejected;
        self.know(submit, id, status);
        let new = new_execution(submit, id, action_id, status);
        self.note(|| accepted_fact(now, &new, None, Vec::new()));
        let (attempt, code) = (new.attempt, EndCode::Rejected(reject.code));
        self.note(|| Fact::Ended {
            execution_id: id,
            action_id,
            attempt,
            status,
            code: Some(code),
            newcomer: None,
        });
        out.push(Effect::Insert(new));
        // It never waited: it is born in its last status, by no move of the state machine.
        let outcome = Arc::new(Outcome::coded(status, code, reject.to_string()));
        out.push(Effect::End(End {
            id,
            outcome,
            ran: None,
        }));
    }

    pub(super) fn cancel(
        &mut self,
        now: Millis,
        execution_id: ExecutionId,
        out: &mut Vec<Effect>,
    ) -> Result<Accepted, Reject> {
        let accepted = |status| {
            Ok(Accepted {
                execution_id: Some(execution_id),
                status,
                ..Accepted::default()
            })
        };
        if execution_id.partition() != self.id {
            let words = format!(
                "execution {execution_id} does not belong to partition {}",
                self.id
            );
            return Err(Reject::new(RejectCode::WrongPartition, words));
        }
        let Some(action_id) = self.index.get(&execution_id).copied() else {
            let words = format!("execution {execution_id} neither waits nor runs");
            return Err(Reject::new(RejectCode::AlreadyEnded, words));
        };
        if self.ask_to_end(action_id, execution_id, out) {
            if self.ending.is_empty() {
                return accepted(None);
            }
            self.serve(now, action_id, out);
            return accepted(Some(Status::Cancelled));
        }
        let take = |queue: &mut ActionQueue| queue.cancel_waiting(execution_id.seq());
        if let Some(waiting) = self.queues.with_existing(action_id, take).flatten() {
            let words = "cancelled while it waited for a slot".to_owned();
            let outcome = Outcome::of(Status::Cancelled, Some(words));
            self.end_waiting(action_id, waiting, outcome, Counter::Cancelled, out);
            self.serve(now, action_id, out);
        }
        accepted(Some(Status::Cancelled))
    }
}

/// The answer to a request that has led to an execution before, or whose refusal is recorded as one.
fn repeated(known: &KnownRequest, digest: i64, out: &mut Vec<Effect>) -> Result<Accepted, Reject> {
    if known.digest == digest {
        out.push(Effect::Count(Counter::Repeated));
        if known.status == Status::Rejected {
            return Err(Reject::already_rejected(known.execution_id));
        }
        return Ok(Accepted {
            execution_id: Some(known.execution_id),
            status: Some(known.status),
            position: None,
            repeated: true,
            priority: None,
        });
    }
    out.push(Effect::Count(Counter::Rejected));
    let words = format!(
        "request id {} was used before with a different body, for execution {}",
        known.request_id, known.execution_id
    );
    Err(Reject::new(RejectCode::Conflict, words))
}

fn new_execution(
    submit: &Submit,
    id: ExecutionId,
    action_id: ActionId,
    status: Status,
) -> NewExecution {
    NewExecution {
        id,
        action_id,
        request_id: submit.request_id,
        digest: submit.digest,
        submission: Arc::clone(&submit.submission),
        status,
        attempt: Attempt(0),
        grant_no: None,
        demand: None,
        asker: submit.wait_bound.map(|bound| bound.asker),
        cancel_requested: false,
        worker: None,
    }
}

/// A submission that can only be kept as a dead letter.
fn letter(submit: &Submit, reject: &Reject) -> Letter {
    Letter {
        request_id: submit.request_id,
        digest: submit.digest,
        submission: Arc::clone(&submit.submission),
        reject: reject.clone(),
    }
}

fn accepted_fact(
    now: Millis,
    new: &NewExecution,
    not_before: Option<Millis>,
    quotas: Vec<QuotaClaim>,
) -> Fact {
    Fact::Accepted {
        execution_id: new.id,
        action_id: new.action_id,
        priority: new.submission.priority.unwrap_or_default(),
        request_id: new.request_id,
        status: new.status,
        not_before,
        at: now,
        demand: new.demand.as_deref().copied(),
        quotas,
        asker: new.asker,
    }
}

/// Answers, if somebody waits for it.
pub(super) fn answer(
    reply_to: Option<Arc<str>>,
    request_id: RequestId,
    outcome: Result<Accepted, Reject>,
    out: &mut Vec<Effect>,
) {
    if let Some(reply_to) = reply_to {
        out.push(Effect::Answer {
            reply_to,
            answer: Answer {
                request_id,
                outcome,
                explanation: None,
            },
        });
    }
}
