//! Why an execution does not run yet: what the owner of its queue says of it, from what it grants by,
//! and the words of it for people. Everybody who says why something waits takes the words from here.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::ids::{Attempt, ExecutionId, Seq, WorkerId};
use crate::pause::PauseMode;
use crate::policy::PolicyScope;
use crate::priority::Priority;
use crate::span;

/// How many holders of a limit are named at most.
pub const MAX_HOLDERS: usize = 20;

/// What the owner of a queue says of an execution that waits in it or holds one of its slots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Where it stands.
    pub state: QueueState,
    /// How often it has held a slot, the one that it holds among them.
    pub attempt: Attempt,
    /// Its priority.
    pub priority: Priority,
    /// When this was so, by the clock by which its owner decides.
    pub at: DateTime<Utc>,
    /// What keeps it from a slot, all of it: when none of this is left, it has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<Reason>,
    /// Before this time it is given no slot, whatever is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_time: Option<DateTime<Utc>>,
    /// It ends as expired when it has no slot by then; nothing of one that has held a slot, or whose queue is
    /// held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
    /// How many wait before it in the order of its queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// So many wait before it that not all of them were looked at: `position` and every `ahead` are about
    /// right.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_about: bool,
    /// Where it stands in the order of its queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order_key: Option<OrderKey>,
    /// When it is given a slot, as far as can be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
    /// Why there is no estimate, of what waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_estimate: Option<NoEstimate>,
    /// The version of the policy documents by which its owner decides; 0 before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy_version: Option<i64>,
}

/// Where an execution stands for the owner of its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueState {
    /// It may not have a slot before a time.
    Delayed,
    /// It waits for a slot.
    Waiting,
    /// It holds a slot.
    HoldsSlot,
    /// Something of a later release.
    #[serde(other)]
    Other,
}

/// Where an execution stands in order: whoever has the smaller key goes first, and of two with the same
/// key whoever has the smaller sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderKey {
    /// What the order rule of its action makes of its priority and of when it was accepted; the
    /// smallest number for one that was moved to the front.
    pub key: i64,
    /// Its place in the order of its partition.
    pub seq: Seq,
}

/// Something that keeps an execution from a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reason {
    /// It was asked for not before a time.
    Delayed {
        /// That time.
        until: DateTime<Utc>,
    },
    /// A try of it has ended, and the next comes after a back-off.
    Backoff {
        /// When that is over.
        until: DateTime<Utc>,
    },
    /// Operators hold its queue.
    Paused {
        /// How.
        mode: PauseMode,
    },
    /// By what executions are grouped has changed, and the groups of some are not known yet.
    Regrouping {
        /// How many are left.
        unknown: u64,
    },
    /// No worker of the pool that would run it has a free slot at the moment, or others stand before it in line for one.
    PoolClosed {
        /// Which pool.
        pool: String,
    },
    /// The limit of its action has no room for it and for who waits before it.
    Limit(Lack),
    /// The limit of its group has no room for it and for who waits before it there.
    GroupLimit(Lack),
    /// As many have started as may in a time; `until` is the next start that is allowed, whoever has it.
    Rate {
        /// That time.
        until: DateTime<Utc>,
        /// How many go before it for the same rate, those among them that keep their slots until their next try.
        #[serde(default, skip_serializing_if = "is_zero")]
        ahead: u64,
    },
    /// Slots are shared, and it is another one's turn: on the highest level on which the two differ that one
    /// holds fewer slots for its weight, or equally many and was served longer ago.
    Turn {
        /// How much of the limit its own flow holds.
        holds: u64,
        /// The weight of its flow.
        weight: u64,
        /// How much the flow holds whose turn it is.
        next_holds: u64,
        /// The weight of that flow.
        next_weight: u64,
        /// Who of it is next.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next: Option<ExecutionId>,
        /// Whether it is the turn within a group that both are of, where that has no room for both.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        in_group: bool,
    },
    /// Workers lack the key with which its parameters are sealed, and gave it back, or gave back what stands before
    /// it: its queue rests before they are tried again.
    Key {
        /// The id of the key.
        key: String,
        /// How often it was given back; 0 where others were, which stand before it.
        #[serde(default)]
        times: u64,
        /// The life of a worker that lacked it last.
        worker: WorkerId,
        /// The name of that worker, where it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        worker_name: Option<String>,
        /// When that was.
        last_at: DateTime<Utc>,
        /// Until when its queue rests, while it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<DateTime<Utc>>,
    },
    /// There is room for it: its turn comes in the next round of its owner.
    NextRound,
    /// Something of a later release.
    #[serde(other)]
    Other,
}

/// A limit that has no room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    /// How much of it there is.
    pub capacity: u64,
    /// How much of it is taken.
    pub used: u64,
    /// How much of it this execution takes.
    pub cost: u64,
    /// How many wait before it that take of the same limit first: those who lack room in a group of their own
    /// are not among them.
    pub ahead: u64,
    /// Slots are shared: those of its own flow are counted in `ahead`, and those of higher priority.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_shared: bool,
    /// Who holds it, at most [`MAX_HOLDERS`] of them, by rising id.
    pub holders: Vec<LimitHolder>,
    /// How many hold it that are not named.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_holders: u64,
}

/// Who holds a part of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitHolder {
    /// Which execution.
    pub execution_id: ExecutionId,
    /// Which attempt of it.
    pub attempt: Attempt,
    /// How much it takes.
    pub cost: u64,
    /// Since when; not known of those that an owner before this one granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    /// Nothing runs in it: it is kept until the next try, which begins then at the earliest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<DateTime<Utc>>,
}

/// When an execution is given a slot, as far as can be told: in four of five cases between `earliest` and
/// `latest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// As likely earlier as later.
    pub starts_at: DateTime<Utc>,
    /// With nine chances in ten not before this.
    pub earliest: DateTime<Utc>,
    /// With nine chances in ten not after this.
    pub latest: DateTime<Utc>,
    /// By what this is known.
    pub basis: Basis,
}

/// How long executions of the action have held their slots, from the grant to the end, by the clock of the
/// owner: the newest 200 count most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Basis {
    /// How many there were since the owner took its queue over, at most 200.
    pub samples: u32,
    /// The mean, in milliseconds.
    pub mean_ms: u64,
    /// The standard deviation, in milliseconds.
    pub deviation_ms: u64,
    /// How long ago the last one ended, in milliseconds.
    pub age_ms: u64,
}

/// Why it cannot be told when an execution is given a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NoEstimate {
    /// Nobody knows when operators resume the queue.
    Paused,
    /// Nobody knows when a worker of the pool has a free slot.
    PoolClosed,
    /// It goes on in a moment.
    Regrouping,
    /// Who waits by then is not known yet.
    Delayed,
    /// Too few have ended since its owner took the queue over.
    FewSamples {
        /// How many have.
        samples: u32,
        /// How many are needed.
        needed: u32,
    },
    /// Executions that go before it come faster than slots come free.
    Overtaken,
    /// It waits for its rate, whatever else it waits for.
    Rate,
    /// Slots are shared: who comes by then decides about its turn as well.
    Turns,
    /// Nobody knows when a worker has the key with which its parameters are sealed.
    Key,
    /// Something of a later release.
    #[serde(other)]
    Other,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Explanation {
    /// What it waits for, in words: all of it in one line.
    #[must_use]
    pub fn words(&self) -> String {
        if self.state == QueueState::HoldsSlot {
            return match self.waits_for.first() {
                None => "for no slot: it holds one".to_owned(),
                // It is at a worker that will give it back, or waits for one there.
                Some(Reason::Key { .. }) => self.reasons(),
                Some(_) => format!("{}; it keeps its slot", self.reasons()),
            };
        }
        self.reasons()
    }

    fn reasons(&self) -> String {
        let is_first = self.position.is_none_or(|before| before == 0);
        let reasons = self.waits_for.iter();
        let reasons: Vec<String> = reasons.map(|it| it.words(self.at, is_first)).collect();
        reasons.join("; ")
    }

    /// Whose limit holds it back: of the first of its reasons that is one.
    #[must_use]
    pub fn limit_scope(&self) -> Option<PolicyScope> {
        self.waits_for.iter().find_map(Reason::scope)
    }

    /// When it is given a slot, in words; nothing of what waits for none.
    #[must_use]
    pub fn estimate_words(&self) -> Option<String> {
        match (&self.estimate, self.no_estimate) {
            (Some(estimate), _) => {
                let words = estimate.words(self.at);
                let expires = self.expires_at.filter(|at| *at < estimate.starts_at);
                Some(match expires {
                    None => words,
                    Some(at) => {
                        let left = span::words((at - self.at).num_milliseconds());
                        format!("{words}, but it expires {left} from now")
                    }
                })
            }
            (None, Some(why)) => Some(why.words()),
            (None, None) => None,
        }
    }
}

impl Reason {
    /// Whose limit holds it back; nothing where it is none that somebody set.
    #[must_use]
    pub fn scope(&self) -> Option<PolicyScope> {
        match self {
            Self::Limit(_) | Self::GroupLimit(_) | Self::Rate { .. } | Self::Turn { .. } => {
                Some(PolicyScope::Action)
            }
            Self::Delayed { .. }
            | Self::Backoff { .. }
            | Self::Paused { .. }
            | Self::Regrouping { .. }
            | Self::PoolClosed { .. }
            | Self::Key { .. }
            | Self::NextRound
            | Self::Other => None,
        }
    }

    /// What is waited for, in words that follow on "it waits"; `now` is when it is so, and `is_first` whether
    /// nobody stands before it in the order of its queue.
    #[must_use]
    pub fn words(&self, now: DateTime<Utc>, is_first: bool) -> String {
        let from_now = |until: &DateTime<Utc>| span::words((*until - now).num_milliseconds());
        match self {
            Self::Delayed { until } => format!("for its time, {} from now", from_now(until)),
            Self::Backoff { until } => {
                format!("for its next try, {} from now", from_now(until))
            }
            Self::Paused { mode } => format!(
                "for operators to resume its queue, which is {}",
                match mode {
                    PauseMode::Pause => "paused",
                    PauseMode::Drain => "draining",
                }
            ),
            Self::Regrouping { unknown } => format!(
                "for its queue, which stands still until the groups of {unknown} executions are known"
            ),
            Self::PoolClosed { pool } => {
                format!("for a free slot of a worker of its pool {pool:?}")
            }
            Self::Limit(lack) => {
                let next = match is_first || lack.is_shared {
                    true => "it is next",
                    false => "those before it wait for room in their groups",
                };
                format!("for a slot: {}", lack.words(next, ""))
            }
            Self::GroupLimit(lack) => {
                let words = lack.words("it is the next of its group", " of its group");
                format!("for room in its group: {words}")
            }
            Self::Rate { until, ahead } => {
                let next = from_now(until);
                let ahead = before_it(*ahead, "", "it is next");
                format!("for its rate, which allows the next start {next} from now, {ahead}")
            }
            Self::Turn {
                holds,
                weight,
                next_holds,
                next_weight,
                next,
                in_group,
            } => {
                let of = if *in_group { " in its group" } else { "" };
                let who = next.map_or(String::new(), |id| format!(" (execution {id})"));
                format!(
                    "for its turn{of} among those of its priority: its flow holds {holds} with weight {weight}, and the one that is \
                     next{who} {next_holds} with weight {next_weight}"
                )
            }
            Self::Key {
                key,
                times,
                worker,
                worker_name,
                last_at,
                until,
            } => {
                let ago = span::words((now - *last_at).num_milliseconds());
                let worker = match worker_name {
                    Some(name) => format!("{name:?}"),
                    None => format!("{worker}"),
                };
                let rests = until.as_ref().map(from_now);
                let by = format!("by worker {worker} {ago} ago");
                match times {
                    0 => format!(
                        "for its queue, which rests{}, because its workers lack the key {key:?} that seals what stands \
                         before it: last given back {by}",
                        rests.map_or(String::new(), |left| format!(" for {left}")),
                    ),
                    _ => format!(
                        "for a worker with the key {key:?}: its workers lack the key that seals its parameters; last \
                         given back {by}, {times} {}{}",
                        if *times == 1 { "time" } else { "times" },
                        rests.map_or(String::new(), |left| format!(
                            "; its queue rests for {left}"
                        )),
                    ),
                }
            }
            Self::NextRound => "for the next round of its executor".to_owned(),
            Self::Other => "for something that a later release knows".to_owned(),
        }
    }
}

/// How many wait before somebody, of those that `of` names; `next` where nobody does.
fn before_it(ahead: u64, of: &str, next: &str) -> String {
    match ahead {
        0 => next.to_owned(),
        1 => format!("1{of} waits before it"),
        many => format!("{many}{of} wait before it"),
    }
}

impl Lack {
    /// Whether it lacks room only because others go before it.
    fn has_room(&self) -> bool {
        self.used.saturating_add(self.cost) <= self.capacity
    }

    fn words(&self, next: &str, of: &str) -> String {
        let verb = if self.used == 1 { "is" } else { "are" };
        let taken = format!("{} of {} {verb} taken", self.used, self.capacity);
        let takes = match self.cost {
            1 => String::new(),
            cost => format!(", it takes {cost}"),
        };
        let ahead = match self.is_shared {
            true => before_it(
                self.ahead,
                " of its flow or of higher priority",
                "it is the next of its flow",
            ),
            false => before_it(self.ahead, of, next),
        };
        // There is room for it: what it waits for is what those before it wait for.
        let goes = if self.has_room() && self.ahead > 0 {
            "; what is free is theirs first"
        } else {
            ""
        };
        format!("{taken}{takes}, {ahead}{goes}")
    }
}

impl Estimate {
    fn words(&self, now: DateTime<Utc>) -> String {
        let after = |time: DateTime<Utc>| span::words((time - now).num_milliseconds());
        let Basis {
            samples,
            mean_ms,
            deviation_ms,
            age_ms,
        } = self.basis;
        let [mean, deviation, age] =
            [mean_ms, deviation_ms, age_ms].map(|it| span::words(span::signed(it)));
        format!(
            "in about {}, in four of five cases {} to {} from now ({samples} runs of {mean} ± \
             {deviation}, the last {age} ago)",
            after(self.starts_at),
            after(self.earliest),
            after(self.latest),
        )
    }
}

impl NoEstimate {
    /// Why nothing can be told, in words.
    #[must_use]
    pub fn words(self) -> String {
        match self {
            Self::Paused => "not to be told: operators hold the queue".to_owned(),
            Self::PoolClosed => "not to be told: it waits for a free slot of a worker".to_owned(),
            Self::Regrouping => "not to be told before the groups are known".to_owned(),
            Self::Delayed => "not to be told before its time has come".to_owned(),
            Self::FewSamples { samples, needed } => format!(
                "not to be told yet: {samples} runs have ended since its executor took the queue \
                 over, {needed} are needed"
            ),
            Self::Overtaken => {
                "not to be told: executions that go before it come faster than slots \
                                come free"
                    .to_owned()
            }
            Self::Rate => "not to be told: it waits for its rate".to_owned(),
            Self::Turns => {
                "not to be told: slots are shared, and turns depend on who comes".to_owned()
            }
            Self::Key => "not to be told: its workers lack the key that seals it".to_owned(),
            Self::Other => "not to be told, for a reason that a later release knows".to_owned(),
        }
    }
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
