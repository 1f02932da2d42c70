//! Clients: they publish in order, ask again until they are answered, repeat themselves, cancel,
//! and change limits.

use std::sync::Arc;

use attune_core::{ActionId, ActionPolicy, ExecutionId, PartitionId, RequestId, Submission};
use attune_executor::partition::{ForceRelease, OnReject};
use chrono::DateTime;
use uuid::Uuid;

use crate::bus::{Body, Name, Submit};
use crate::groups::Words;
use crate::plan::{self, Op, Plant, Time};
use crate::rng::Rng;
use crate::trace::Note;
use crate::world::{Ev, WALL, World};

/// How long a client waits before it asks again; then longer and longer.
const ASK_AGAIN: Time = 2_500;

/// Something that a client wants to be sure of.
pub(crate) struct Ask {
    client: usize,
    name: Name,
    pub(crate) body: Body,
    pub(crate) request_id: RequestId,
    /// The broker's word is enough: nobody waits for an answer.
    pub(crate) confirm_only: bool,
    /// The limit that holds when it is answered.
    limit: Option<(ActionId, i64)>,
    /// The version of what is held that is in force in a partition when it is answered.
    pub(crate) pause: Option<(i64, PartitionId)>,
    /// The version of the policy set, likewise.
    pub(crate) policies: Option<(i64, PartitionId)>,
    tries: u32,
    pub(crate) done: bool,
}

/// Who waits for an answer, and to which copy of what it asks.
pub(crate) fn asker(reply_to: &str) -> Option<(usize, u32)> {
    let (number, copy) = reply_to.split_once('.').unwrap_or((reply_to, "0"));
    Some((number.parse().ok()?, copy.parse().ok()?))
}

impl Ask {
    /// The message that is sent this time. Copies of a submission can be told apart.
    fn copy(&self, number: usize) -> Body {
        match &self.body {
            Body::Submit(submit) if submit.reply_to.is_some() => Body::Submit(Arc::new(Submit {
                reply_to: Some(format!("{number}.{}", self.tries).into()),
                ..Submit::clone(submit)
            })),
            body => body.clone(),
        }
    }
}

impl World {
    /// The request id of a planned submission: the same, however often it is sent.
    ///
    /// Most are of version 7 and tell when they were made, by clocks of clients, some of which are minutes
    /// off; the others tell nothing.
    fn request_of(&self, id: usize) -> RequestId {
        let planned = self.plan.ops.iter().find(|planned| planned.id == id);
        let chance = Rng::new(self.plan.seed ^ (id as u64) << 20).bits() % 100;
        let off = match chance {
            0..80 => 0,
            80..85 => -45_000,
            85..90 => 45_000,
            90..92 => 700_000,
            92..94 => -700_000,
            _ => {
                let high = u128::from(self.plan.seed);
                return RequestId(Uuid::from_u128(high << 64 | 1 << 63 | id as u128));
            }
        };
        let made = WALL + planned.map_or(0, |planned| planned.at) + off;
        let made = u128::from(made.max(0).unsigned_abs());
        RequestId(Uuid::from_u128(made << 80 | 7 << 76 | 1 << 63 | id as u128))
    }

    pub(crate) fn op(&mut self, index: usize) {
        let planned = self.plan.ops[index].clone();
        self.note(Note::Op(planned.id));
        match planned.what {
            Op::Submit { .. } => self.submit(planned.id, &planned.what, false),
            Op::Repeat { of, differs } => {
                let first = self.plan.ops.iter().find(|op| op.id == of);
                let first = first.map(|op| op.what.clone());
                if let Some(mut what @ Op::Submit { .. }) = first {
                    // Somebody else may want to know what became of it.
                    if let Op::Submit { asks, .. } = &mut what {
                        *asks |= planned.id.is_multiple_of(2);
                    }
                    self.submit(of, &what, differs);
                }
            }
            Op::Cancel { of } => {
                // As someone would who has found it in the list.
                let stored = self.store.requests.get(&self.request_of(of));
                if let Some((id, _)) = stored.copied() {
                    self.cancel(id);
                }
            }
            Op::Explain { of } => {
                let stored = self.store.requests.get(&self.request_of(of));
                if let Some((id, _)) = stored.copied() {
                    self.explain(id);
                }
            }
            Op::ForceRelease { of } => {
                let holders = self.store.active.iter();
                let holders = holders.filter(|(_, row)| row.status.holds_slot());
                let many = holders.clone().count().max(1);
                let mut holders = holders.map(|(id, _)| *id).skip(of % many);
                if let Some(id) = holders.next() {
                    self.force_release(id);
                }
            }
            Op::Limit { action, limit } => {
                self.change_policy(action, |policy| policy.concurrency.limit = limit);
            }
            Op::Group { action, grouping } => {
                *self.seen.faults.entry("group").or_default() += 1;
                let (grouping, limit) = grouping;
                self.change_policy(action, |policy| grouping.write(policy, limit));
            }
            Op::Overflow { action, overflow } => {
                *self.seen.faults.entry("overflow").or_default() += 1;
                self.change_policy(action, |policy| overflow.write(policy));
            }
            Op::Order { action, order } => {
                *self.seen.faults.entry("order").or_default() += 1;
                self.change_policy(action, |policy| plan::set_order(policy, order));
            }
            // What came later than the end of all that goes wrong would never end.
            Op::Pause { .. } if self.healed => {}
            Op::Pause { target, mode } => self.change_pause(&target, mode),
            Op::Policies { .. } if self.healed => {}
            Op::Policies { documents } => self.change_policies(documents),
            Op::Operate { .. } if self.healed => {}
            Op::Operate { kind, filter } => self.operate(kind, &filter),
        }
    }

    fn change_policy(&mut self, action: usize, change: impl FnOnce(&mut ActionPolicy)) {
        let Some(stored) = self.store.actions.get_mut(action) else {
            return;
        };
        change(&mut stored.spec.policy);
        let limit = stored.spec.policy.concurrency.limit;
        stored.version += 1;
        let (id, version) = (stored.id, stored.version);
        let action_ref: Arc<str> = Arc::from(stored.spec.action_ref.as_str());
        let partition = stored.partition;
        self.oracle.said.stored(id, version, limit);
        // Some die before they have told the owner what they have stored.
        if self.now % 5 == 0 {
            *self.seen.faults.entry("untold-limit").or_default() += 1;
            return;
        }
        let request_id = RequestId(self.fresh());
        let body = |reply_to| Body::Changed(request_id, action_ref, reply_to);
        self.add_ask(0, partition, request_id, false, body);
        if let Some(ask) = self.asks.last_mut() {
            ask.limit = Some((id, version));
        }
    }

    /// Takes the slot back from an execution that is seen to hold it.
    fn force_release(&mut self, id: ExecutionId) {
        let row = self.store.active.get(&id);
        let Some(row) = row.filter(|row| row.status.holds_slot()) else {
            return;
        };
        let (attempt, worker) = (row.attempt, row.worker);
        self.oracle.ask_back((id, attempt));
        let request_id = RequestId(self.fresh());
        let command = ForceRelease {
            request_id,
            execution_id: id,
            attempt,
            who: "somebody".to_owned(),
            reason: "it hangs".to_owned(),
            worker,
            never_begun: false,
        };
        let body = |reply_to| Body::Release(Arc::new(command), reply_to);
        self.add_ask(0, id.partition(), request_id, false, body);
    }

    fn submit(&mut self, id: usize, what: &Op, differs: bool) {
        let Op::Submit {
            client,
            action,
            priority,
            delay,
            asks,
        } = *what
        else {
            return;
        };
        let Some(shape) = self.plan.actions.get(action) else {
            return;
        };
        let mut submission = Submission::new(shape.name.clone());
        submission.priority = Some(priority);
        let request_id = self.request_of(id);
        let words = Words::of(request_id);
        if self.plan.says_words {
            words.write(&mut submission);
            submission.priority = submission.priority.filter(|_| !words.is_modest);
        }
        // Where there are documents it depends on which of them are in force then.
        let rank = shape.ranks.of(submission.priority, words);
        let rank = Some(rank).filter(|_| !self.has_policies());
        submission.group = differs.then(|| "another body".to_owned());
        let planned = self.plan.ops.iter().find(|op| op.id == id);
        let at = planned.map_or(0, |op| op.at);
        let not_before = delay.and_then(|delay| DateTime::from_timestamp_millis(WALL + at + delay));
        submission.not_before = not_before;
        let partition = self.plan.partition_of(action);
        self.oracle.said.submitted(request_id, &submission, rank);
        self.policies
            .submitted(request_id, action, submission.priority);
        if !asks {
            self.refusals.fired(request_id);
        }
        let body = |reply_to: Arc<str>| {
            Body::Submit(Arc::new(Submit {
                request_id,
                submission,
                on_reject: if asks {
                    OnReject::Answer
                } else {
                    OnReject::Record
                },
                reply_to: asks.then_some(reply_to),
            }))
        };
        self.add_ask(client, partition, request_id, !asks, body);
    }

    fn cancel(&mut self, id: ExecutionId) {
        self.retries.cancel(id);
        let request_id = RequestId(self.fresh());
        let body = |reply_to| Body::Cancel(request_id, id, reply_to);
        self.add_ask(0, id.partition(), request_id, false, body);
    }

    pub(crate) fn add_ask(
        &mut self,
        client: usize,
        partition: PartitionId,
        request_id: RequestId,
        confirm_only: bool,
        body: impl FnOnce(Arc<str>) -> Body,
    ) {
        let number = self.asks.len();
        self.asks.push(Ask {
            client,
            name: match confirm_only {
                true => Name::Commands(partition.0),
                false => Name::Calls(partition.0),
            },
            body: body(Arc::from(number.to_string())),
            request_id,
            confirm_only,
            limit: None,
            pause: None,
            policies: None,
            tries: 0,
            done: false,
        });
        self.ask(number);
    }

    /// Publishes, and comes back to it in a while.
    pub(crate) fn ask(&mut self, number: usize) {
        if self.asks[number].done {
            return;
        }
        let delay = self.delay();
        let ask = &self.asks[number];
        let (name, body, confirm_only) = (ask.name, ask.copy(number), ask.confirm_only);
        let client = ask.client;
        let last = self.client_at.entry(ask.client).or_insert(0);
        *last = (*last).max(self.now + delay);
        let at = *last;
        // A message that does not arrive is one whose confirm the client never sees.
        if !self.rng.chance(self.noise.lost) {
            self.refusals.sent(&body);
            self.push(
                at,
                Ev::Arrive(name, body.clone(), confirm_only.then_some(number)),
            );
        }
        if self.rng.chance(self.noise.doubled) {
            self.refusals.sent(&body);
            self.push(at + 1, Ev::Arrive(name, body, None));
            // What comes next on the same connection comes after it.
            self.client_at.insert(client, at + 1);
        }
        let tries = &mut self.asks[number].tries;
        let wait = ASK_AGAIN << (*tries).min(3);
        *tries += 1;
        if confirm_only || !self.has(Plant::AskOnce) {
            self.push(self.now + wait, Ev::Ask(number));
        }
    }

    /// The broker has a message for good; the client may not hear of it.
    pub(crate) fn confirm(&mut self, number: usize) {
        let lost = self.rng.chance(self.noise.lost);
        let ask = &mut self.asks[number];
        self.confirmed.insert(ask.request_id);
        ask.done = !lost;
        let body = ask.body.clone();
        self.promise(&body);
    }

    /// An owner says which execution a request has led to.
    pub(crate) fn told(&mut self, reply_to: &str, id: ExecutionId) {
        let ask = asker(reply_to).and_then(|(number, _)| self.asks.get(number));
        if let Some(ask) = ask
            && matches!(ask.body, Body::Submit(_))
        {
            self.oracle
                .answered(self.now, &self.store, ask.request_id, id);
        }
    }

    /// Whether a command asks for an execution.
    pub(crate) fn submits(&self, ask: usize) -> bool {
        let ask = self.asks.get(ask);
        ask.is_some_and(|ask| matches!(ask.body, Body::Submit(_)))
    }

    /// An owner has answered this copy of a command.
    pub(crate) fn answered(&mut self, number: usize, copy: u32, is_refused: bool) {
        self.note(Note::Answered(number));
        let ask = &mut self.asks[number];
        ask.done = true;
        if is_refused && matches!(ask.body, Body::Submit(_)) {
            let request = ask.request_id;
            return self.heard_refusal(request, (number, copy));
        }
        if is_refused {
            // It is not in force yet.
            return;
        }
        if let Some((version, partition)) = ask.pause {
            self.holds.told(version, partition);
        }
        if let Some((version, partition)) = ask.policies {
            self.policies.told(version, partition);
        }
        if let Some((action, version)) = ask.limit {
            self.oracle.said.told(action, version);
        }
    }
}
