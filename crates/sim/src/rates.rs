//! How often executions start and how many are accepted in an hour, as the store sees it: by the right
//! clock, at the moment of the commit, and by what submissions say. Owners are judged by this, and not by
//! what they count.

use std::collections::BTreeMap;

use attune_core::policy::{Calendar, OnRate, Quota, RateLimit};
use attune_core::{ActionId, ActionPolicy, ExecutionId, Promise, RejectCode, RequestId, Status};
use attune_executor::Fact;

use crate::groups::Words;
use crate::oracle::Violation;
use crate::plan::Time;
use crate::rng::Rng;
use crate::world::{WALL, World, Written};

/// For how long after its rate is used up somebody may wait because an owner does not know better: by
/// how much its time may be wrong, and a takeover.
const PATIENT: Time = 40_000;

/// An hour, in milliseconds.
const HOUR: i64 = 3_600_000;

/// How often executions of an action may start, and how many are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Starts {
    /// So many in so many seconds.
    pub rate: Option<(u32, u32)>,
    /// For each user.
    pub by_user: bool,
    /// What comes while the rate is used up is refused.
    pub rejects: bool,
    /// One after the other, so many milliseconds later.
    pub interval: Option<u32>,
    /// So many an hour, for each user or for all.
    pub quota: Option<(u32, bool)>,
}

impl Starts {
    /// Draws them. None are so slow that a run would not come to its end.
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let rates = [(1, 1), (2, 1), (2, 2), (3, 2), (5, 5), (4, 3), (70, 3)];
        Self {
            rate: rng.chance(750).then(|| rng.pick(&rates)),
            by_user: rng.chance(500),
            rejects: rng.chance(150),
            interval: rng.chance(300).then(|| rng.pick(&[1, 50, 400])),
            quota: rng
                .chance(300)
                .then(|| (rng.pick(&[3, 8, 20]), rng.chance(500))),
        }
    }

    /// Writes them down.
    pub(crate) fn write(self, policy: &mut ActionPolicy) {
        let by = |is: bool| {
            let path = is.then(|| "user".parse().expect("it is a path"));
            path.into_iter().collect()
        };
        policy.rate_limit = self.rate.map(|(max_executions, window_seconds)| RateLimit {
            max_executions,
            window_seconds,
            by: by(self.by_user),
            on_limit: if self.rejects {
                OnRate::Reject
            } else {
                OnRate::Wait
            },
        });
        policy.min_interval_ms = self.interval;
        let quota = self.quota.map(|(max, by_user)| Quota {
            per: Calendar::Hour,
            max,
            by: by(by_user),
        });
        policy.quotas = quota.into_iter().collect();
    }
}

/// A start, and what it is judged by.
#[derive(Debug, Clone, Copy)]
struct Start {
    /// When it was stored.
    at: Time,
    /// The same by the clock of the store or by what its owner wrote down, either of which may have been far
    /// ahead: an owner that goes on from there takes it for so much younger.
    latest: Time,
    user: Option<u8>,
    /// The furthest that any clock by which it may be counted was behind since: a later owner that knows
    /// the time better takes it for so much older.
    behind: Time,
    /// The furthest that any such clock was ahead since: that owner takes it for so much older, and does not hand
    /// it on when its window is over by then.
    ahead: Time,
}

/// What was stored.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    starts: BTreeMap<ActionId, Vec<Start>>,
    /// How many were accepted, by action, hour and user.
    accepted: BTreeMap<(ActionId, i64, Option<u8>), u32>,
}

impl Rates {
    /// Whether somebody may have to wait for its rate still.
    pub(crate) fn may_be_used_up(
        &self,
        action: ActionId,
        policy: &ActionPolicy,
        now: Time,
    ) -> bool {
        let rate = policy.rate_limit.as_ref();
        let window = rate.map_or(0, |rate| Time::from(rate.window_seconds) * 1000);
        let interval = policy.min_interval_ms.map_or(0, Time::from);
        let longest = window.max(interval);
        let last = self.starts.get(&action).and_then(|starts| starts.last());
        longest > 0 && last.is_some_and(|last| last.at + longest + PATIENT > now)
    }
}

impl Rates {
    /// Whether the rate and the interval of an action surely let somebody start: of those that were given a slot
    /// since `calm` each counts from its commit, or `late` after it, and all others from then.
    pub(crate) fn is_surely_open(
        &self,
        action: ActionId,
        limits: &Starts,
        words: Words,
        now: Time,
        (calm, late): (Time, Time),
    ) -> bool {
        let starts = self.starts.get(&action).into_iter().flatten();
        let counts = |window: Time, of: Option<Option<u8>>| {
            // A large limit counts by slices, of which there are 64 in a window.
            let longest = window + window / 64 + 1;
            let starts = starts.clone().filter(move |start| {
                // Written down by a clock that was ahead, it counts for as much longer with whoever goes on.
                let counts_from = start.at.max(start.latest).max(calm) + late;
                counts_from + longest > now && of.is_none_or(|of| of == start.user)
            });
            starts.count()
        };
        let by_rate = limits.rate.is_none_or(|(max, seconds)| {
            let of = limits.by_user.then(|| words.user());
            counts(Time::from(seconds) * 1000, of) < max as usize
        });
        by_rate
            && limits
                .interval
                .is_none_or(|it| counts(it.into(), None) == 0)
    }
}

impl World {
    /// By how much the clock of an owner is ahead of the right one.
    pub(crate) fn ahead(&self, o: usize) -> Time {
        self.owners[o].wall(self.now) - (WALL + self.now)
    }

    /// A round was stored: no rate and no quota was exceeded with it.
    pub(crate) fn judge_rates(&mut self, written: &Written) {
        let store_ahead = self.store_now() - self.now;
        // Of what a takeover finds that was decided long before it was stored, by a store whose clock is
        // behind, nobody knows when it was stored.
        let late = if store_ahead < 0 {
            self.now - written.decided
        } else {
            0
        };
        let behind = written.ahead.min(store_ahead).min(written.ahead - late);
        // A clock that has stopped since shows a time at which this was not stored yet.
        let owner = self.owner_of(written.commit.batch.owner);
        let behind = owner.map_or(behind, |owner| behind.min(self.ahead(owner)));
        for starts in self.rates.starts.values_mut() {
            let starts = starts.iter_mut();
            starts.for_each(|start| {
                start.behind = start.behind.min(behind);
                start.ahead = start.ahead.max(written.ahead);
            });
        }
        let facts = written.commit.decided.iter().flat_map(|it| &it.facts);
        for fact in facts.cloned().collect::<Vec<_>>() {
            let violation = match fact {
                Fact::Granted {
                    execution_id,
                    action_id,
                    ..
                } => {
                    let stamp = written.commit.batch.at - WALL;
                    self.judge_start((execution_id, action_id), stamp, (written.ahead, behind))
                }
                Fact::Accepted {
                    action_id,
                    request_id,
                    quotas,
                    status,
                    at,
                    ..
                } if status != Status::Rejected => {
                    let window = quotas.first().map(|quota| quota.window);
                    self.judge_acceptance((action_id, request_id), at, window)
                }
                Fact::Refused {
                    action_id: Some(action_id),
                    request_id,
                    code,
                } => {
                    // What is written again for minutes was decided before that.
                    let decided = written.decided.min(written.commit.batch.at - WALL);
                    let by = (decided, written.ahead.min(0));
                    self.judge_used_up((action_id, request_id), code, by)
                }
                _ => None,
            };
            if let Some(words) = violation {
                let violation = Violation::of(Promise::I8, words);
                self.note(crate::trace::Note::Broken(violation.rule));
                self.oracle.blame(self.now, violation);
            }
        }
    }

    fn judge_start(
        &mut self,
        (execution, action): (ExecutionId, ActionId),
        stamp: Time,
        (ahead, behind): (Time, Time),
    ) -> Option<String> {
        let number = usize::try_from(action.0 - 1).unwrap_or(0);
        let limits = self.plan.actions[number].starts;
        if limits.rate.is_none() && limits.interval.is_none() {
            return None;
        }
        let row = self.store.active.get(&execution)?;
        let user = Words::of(row.request).user();
        let now = self.now;
        let latest = self.store_now().max(stamp);
        let starts = self.rates.starts.entry(action).or_default();
        starts.push(Start {
            at: now,
            latest,
            user,
            behind,
            ahead,
        });
        self.seen.counted_starts += 1;
        let within = |window: Time, of: Option<Option<u8>>| {
            let starts = starts.iter().filter(|start| {
                let unsure = (ahead.max(start.ahead) - start.behind).max(0);
                start.at > now - (window - unsure) && of.is_none_or(|of| of == start.user)
            });
            starts.count()
        };
        if let Some((max, seconds)) = limits.rate {
            let of = limits.by_user.then_some(user);
            let count = within(Time::from(seconds) * 1000, of);
            if count > max as usize {
                return Some(format!(
                    "{execution} is start number {count} of {action} in {seconds} s, and {max} may be: \
                     {limits:?}"
                ));
            }
        }
        let interval = limits.interval?;
        (within(interval.into(), None) > 1).then(|| {
            format!("{execution} starts less than {interval} ms after another of {action}")
        })
    }

    fn judge_acceptance(
        &mut self,
        (action, request): (ActionId, RequestId),
        at: i64,
        window: Option<i64>,
    ) -> Option<String> {
        let number = usize::try_from(action.0 - 1).unwrap_or(0);
        let (max, by_user) = self.plan.actions[number].starts.quota?;
        let user = Words::of(request).user().filter(|_| by_user);
        let Some(window) = window else {
            return Some(format!("{request} is accepted and no quota counts it"));
        };
        // Whoever goes on from an owner whose clock was ahead counts in the window of that one.
        let of_action = (action, i64::MIN, None)..=(action, i64::MAX, Some(u8::MAX));
        let known = self.rates.accepted.range(of_action).next_back();
        let latest = known.map_or(i64::MIN, |((_, window, _), _)| *window);
        let right = (at - at.rem_euclid(HOUR)).max(latest);
        if window != right {
            return Some(format!(
                "{request} is counted in the hour from {window} on, and not from {right} on"
            ));
        }
        let count = self.rates.accepted.entry((action, window, user));
        let count = count.and_modify(|count| *count += 1).or_insert(1);
        (*count > max).then(|| {
            format!(
                "{request} is acceptance number {count} of {action} in an hour, and {max} may be"
            )
        })
    }

    /// Whoever is refused because something is used up would have been one too many, or could have been as
    /// far as an owner can know. It was refused when that was `decided`, which may have been stored much later,
    /// by a clock that was `behind` by this much.
    fn judge_used_up(
        &self,
        (action, request): (ActionId, RequestId),
        code: RejectCode,
        (decided, behind): (Time, Time),
    ) -> Option<String> {
        let number = usize::try_from(action.0 - 1).unwrap_or(0);
        let limits = self.plan.actions[number].starts;
        let said = Words::of(request).user();
        let is_right = match code {
            RejectCode::RateLimited => limits.rate.is_some_and(|(max, seconds)| {
                let since = decided - Time::from(seconds) * 1000 - PATIENT;
                let starts = self.rates.starts.get(&action);
                let starts = starts
                    .into_iter()
                    .flatten()
                    .filter(|start| start.at.max(start.latest) > since)
                    .filter(|start| !limits.by_user || start.user == said);
                limits.rejects && starts.count() >= max as usize
            }),
            RejectCode::QuotaExceeded => limits.quota.is_some_and(|(max, by_user)| {
                let user = said.filter(|_| by_user);
                let lasts = WALL + decided + behind - PATIENT;
                let mut counts = self.rates.accepted.iter();
                counts.any(|((of, window, whose), count)| {
                    let is_it = (*of, *whose) == (action, user) && *window + HOUR > lasts;
                    is_it && *count >= max
                })
            }),
            _ => true,
        };
        (!is_right).then(|| format!("{request} of {action} is refused as {code:?} without need"))
    }
}
