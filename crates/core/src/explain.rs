//! Why an execution does not run yet: what the owner of its queue says of it, from what it grants by,
//! and the words of it for people. Everybody who says why something waits takes the words from here.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::ids::{Attempt, ExecutionId, Seq};
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
    /// The pool that would run it takes no dispatches at the moment.
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
    /// How many wait before it for the same limit.
    pub ahead: u64,
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
    /// Nobody knows when the pool takes dispatches again.
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
    /// It waits for its rate, not for a run to end.
    Rate,
    /// Slots are shared: who comes by then decides about its turn as well.
    Turns,
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
                Some(_) => {
                    let reasons = self.waits_for.iter().map(|it| it.words(self.at));
                    format!(
                        "{}; it keeps its slot",
                        reasons.collect::<Vec<_>>().join("; ")
                    )
                }
            };
        }
        let reasons: Vec<String> = self.waits_for.iter().map(|it| it.words(self.at)).collect();
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
            (Some(estimate), _) => Some(estimate.words(self.at)),
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
            | Self::NextRound
            | Self::Other => None,
        }
    }

    /// What is waited for, in words that follow on "it waits"; `now` is when it is so.
    #[must_use]
    pub fn words(&self, now: DateTime<Utc>) -> String {
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
                format!("for its pool {pool:?}, which takes no dispatches at the moment")
            }
            Self::Limit(lack) => format!("for a slot: {}", lack.words()),
            Self::GroupLimit(lack) => format!("for room in its group: {}", lack.words()),
            Self::Rate { until } => format!(
                "for its rate, which allows the next start {} from now",
                from_now(until)
            ),
            Self::Turn {
                holds,
                weight,
                next_holds,
                next_weight,
            } => format!(
                "for its turn: it holds {holds} with weight {weight}, and whoever is next {next_holds} \
                 with weight {next_weight}"
            ),
            Self::NextRound => "for the next round of its executor".to_owned(),
            Self::Other => "for something that a later release knows".to_owned(),
        }
    }
}

impl Lack {
    fn words(&self) -> String {
        let verb = if self.used == 1 { "is" } else { "are" };
        let taken = format!("{} of {} {verb} taken", self.used, self.capacity);
        let takes = match self.cost {
            1 => String::new(),
            cost => format!(", it takes {cost}"),
        };
        let ahead = match self.ahead {
            0 => "it is next".to_owned(),
            1 => "1 waits before it".to_owned(),
            many => format!("{many} wait before it"),
        };
        format!("{taken}{takes}, {ahead}")
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
            Self::PoolClosed => "not to be told: the pool takes no dispatches".to_owned(),
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
            Self::Rate => "not to be told: it waits for its rate, not for a run to end".to_owned(),
            Self::Turns => {
                "not to be told: slots are shared, and turns depend on who comes".to_owned()
            }
            Self::Other => "not to be told, for a reason that a later release knows".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    fn lack(used: u64, ahead: u64, cost: u64) -> Lack {
        Lack {
            capacity: 5,
            used,
            cost,
            ahead,
            holders: Vec::new(),
            more_holders: 0,
        }
    }

    #[test]
    fn every_reason_is_said_in_words() {
        let until = at(65);
        for (reason, words) in [
            (Reason::Delayed { until }, "for its time, 1m 5s from now"),
            (
                Reason::Backoff { until },
                "for its next try, 1m 5s from now",
            ),
            (
                Reason::Limit(lack(5, 0, 1)),
                "for a slot: 5 of 5 are taken, it is next",
            ),
            (
                Reason::GroupLimit(lack(1, 3, 2)),
                "for room in its group: 1 of 5 is taken, it takes 2, 3 wait before it",
            ),
            (
                Reason::PoolClosed {
                    pool: "gpu".to_owned(),
                },
                "for its pool \"gpu\", which takes no dispatches at the moment",
            ),
            (
                Reason::Paused {
                    mode: PauseMode::Drain,
                },
                "for operators to resume its queue, which is draining",
            ),
            (
                Reason::Turn {
                    holds: 3,
                    weight: 1,
                    next_holds: 2,
                    next_weight: 4,
                },
                "for its turn: it holds 3 with weight 1, and whoever is next 2 with weight 4",
            ),
        ] {
            assert_eq!(reason.words(at(0)), words);
        }
    }

    #[test]
    fn an_estimate_says_what_it_is_based_on() {
        let estimate = Estimate {
            starts_at: at(10),
            earliest: at(7),
            latest: at(14),
            basis: Basis {
                samples: 120,
                mean_ms: 2_000,
                deviation_ms: 500,
                age_ms: 300,
            },
        };
        assert_eq!(
            estimate.words(at(0)),
            "in about 10.0s, in four of five cases 7.0s to 14.0s from now (120 runs of 2.0s ± \
             500ms, the last 300ms ago)"
        );
    }

    #[test]
    fn what_a_later_release_says_is_read() {
        let reason: Reason =
            serde_json::from_str(r#"{"kind":"rate_limit","window_seconds":60}"#).unwrap();
        assert_eq!(reason, Reason::Other);
        let why: NoEstimate = serde_json::from_str(r#"{"kind":"moon"}"#).unwrap();
        assert_eq!(why, NoEstimate::Other);
        let limit = serde_json::to_value(Reason::Limit(lack(5, 0, 1))).unwrap();
        assert_eq!(
            (&limit["kind"], &limit["used"]),
            (&"limit".into(), &5.into())
        );
    }
}
