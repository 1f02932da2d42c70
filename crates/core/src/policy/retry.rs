//! Trying again: what is tried again, how often, and how long each try waits for its turn.

use serde::{Deserialize, Serialize};

use super::check_count;
use crate::ids::{Attempt, ExecutionId};
use crate::reject::Reject;
use crate::status::Status;

/// How an attempt ends that may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TryEnd {
    /// With an error of its own.
    Failed,
    /// It ran longer than it may.
    TimedOut,
    /// Its worker was lost.
    WorkerLost,
}

impl TryEnd {
    const ALL: [Self; 3] = [Self::Failed, Self::TimedOut, Self::WorkerLost];

    /// What a worker has said of a run, if it is something that can be tried again.
    #[must_use]
    pub fn reported(status: Status) -> Option<Self> {
        match status {
            Status::Failed => Some(Self::Failed),
            Status::TimedOut => Some(Self::TimedOut),
            _ => None,
        }
    }

    /// The status of an execution that ends so because nothing is tried again.
    #[must_use]
    pub fn status(self) -> Status {
        match self {
            Self::Failed => Status::Failed,
            Self::TimedOut => Status::TimedOut,
            Self::WorkerLost => Status::Abandoned,
        }
    }
}

/// A set of [`TryEnd`]s, written as a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "Vec<TryEnd>", into = "Vec<TryEnd>")]
pub struct TryEnds(u8);

impl TryEnds {
    /// Whether it has this one.
    #[must_use]
    pub fn contains(self, end: TryEnd) -> bool {
        self.0 & (1 << end as u8) != 0
    }
}

impl FromIterator<TryEnd> for TryEnds {
    fn from_iter<I: IntoIterator<Item = TryEnd>>(ends: I) -> Self {
        Self(ends.into_iter().fold(0, |set, end| set | (1 << end as u8)))
    }
}

impl From<Vec<TryEnd>> for TryEnds {
    fn from(ends: Vec<TryEnd>) -> Self {
        ends.into_iter().collect()
    }
}

impl From<TryEnds> for Vec<TryEnd> {
    fn from(set: TryEnds) -> Self {
        let ends = TryEnd::ALL.into_iter();
        ends.filter(|end| set.contains(*end)).collect()
    }
}

/// A number that is multiplied with; [`Backoff::check`] bounds it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Factor(pub f64);

impl PartialEq for Factor {
    fn eq(&self, other: &Self) -> bool {
        self.0.total_cmp(&other.0).is_eq()
    }
}

impl Eq for Factor {}

/// How long an execution waits before it is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backoff {
    /// After the first try, in milliseconds.
    #[serde(default = "initial_ms")]
    pub initial_ms: u64,
    /// After each further try, so many times as long.
    #[serde(default = "factor")]
    pub factor: Factor,
    /// At most so long, in milliseconds.
    #[serde(default = "max_ms")]
    pub max_ms: u64,
    /// By up to which share of itself a wait is shortened, so that what failed together does not come
    /// again together: 0 for none, 1 for anything down to nothing.
    #[serde(default = "jitter")]
    pub jitter: Factor,
}

fn initial_ms() -> u64 {
    1_000
}

fn factor() -> Factor {
    Factor(2.0)
}

fn max_ms() -> u64 {
    60_000
}

fn jitter() -> Factor {
    Factor(0.2)
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial_ms: initial_ms(),
            factor: factor(),
            max_ms: max_ms(),
            jitter: jitter(),
        }
    }
}

const DAY_MS: u64 = 86_400_000;
/// The longest that the first wait may be.
const MOST_INITIAL_MS: u64 = DAY_MS;
/// The longest that any wait may be: a month.
const MOST_MS: u64 = 31 * DAY_MS;
const MOST_FACTOR: f64 = 100.0;

impl Backoff {
    fn check(&self) -> Result<(), Reject> {
        let refuse = |field: &str, words: String| Err(Reject::field(field, words));
        if !(1..=MOST_INITIAL_MS).contains(&self.initial_ms) {
            let field = "policy.retry.backoff.initial_ms";
            let words = format!("`{field}` must be from 1 to {MOST_INITIAL_MS} (a day)");
            return refuse(field, words);
        }
        if !(1.0..=MOST_FACTOR).contains(&self.factor.0) {
            let field = "policy.retry.backoff.factor";
            let words = format!("`{field}` must be a number from 1 to {MOST_FACTOR}");
            return refuse(field, words);
        }
        if !(self.initial_ms..=MOST_MS).contains(&self.max_ms) {
            let field = "policy.retry.backoff.max_ms";
            let words = format!(
                "`{field}` is {} and must be from {}, which is `initial_ms`, to {MOST_MS} (31 days)",
                self.max_ms, self.initial_ms
            );
            return refuse(field, words);
        }
        if !(0.0..=1.0).contains(&self.jitter.0) {
            let field = "policy.retry.backoff.jitter";
            return refuse(field, format!("`{field}` must be a number from 0 to 1"));
        }
        Ok(())
    }

    /// How long to wait after a try, in milliseconds: at least 1. The same for the same attempt,
    /// whoever asks; `tries` counts from 1.
    #[must_use]
    pub fn wait(&self, id: ExecutionId, attempt: Attempt, tries: u32) -> i64 {
        let grown = self.initial_ms as f64 * power(self.factor.0, tries.saturating_sub(1));
        let whole = grown.min(self.max_ms as f64);
        let shortened = whole * (1.0 - self.jitter.0 * share(id, attempt));
        (shortened as i64).max(1)
    }
}

/// By squaring, so that it is the same on every machine.
fn power(base: f64, exponent: u32) -> f64 {
    let (mut result, mut square, mut rest) = (1.0, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result *= square;
        }
        square *= square;
        rest >>= 1;
    }
    result
}

/// From 0 to nearly 1: a hash of the attempt, as different for the next one as for another execution.
fn share(id: ExecutionId, attempt: Attempt) -> f64 {
    let mut bits = id.0.cast_unsigned() ^ (u64::from(attempt.0.cast_unsigned()) << 48);
    // The finalizer of SplitMix64: each bit of what comes in changes half of what goes out.
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        bits = (bits ^ (bits >> 30)).wrapping_mul(factor);
    }
    let high = u32::try_from((bits ^ (bits >> 31)) >> 32).unwrap_or(u32::MAX);
    f64::from(high) / (f64::from(u32::MAX) + 1.0)
}

/// What is tried again, as an author writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// How often it may be tried in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Which ends of a try are tried again; all of them when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<TryEnds>,
    /// How long it waits before.
    #[serde(default)]
    pub backoff: Backoff,
    /// Whether it keeps its slot meanwhile.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold_slot: bool,
}

impl Retry {
    pub(super) fn check(&self) -> Result<(), Reject> {
        let field = "policy.retry.max_attempts";
        check_count(field, self.max_attempts, "that of `max_attempts`")?;
        self.backoff.check()
    }
}

/// When an action is tried again, as it is computed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryRule {
    /// How many tries there are in all.
    pub max_attempts: u32,
    /// Which ends are tried again.
    pub on: TryEnds,
    /// How long each waits; without one it waits for its slot alone.
    pub backoff: Option<Backoff>,
    /// Whether it keeps its slot while it waits.
    pub hold_slot: bool,
}

impl RetryRule {
    /// Whether there is another try after the one that ended so. `tries` counts those that have begun.
    #[must_use]
    pub fn tries_again(&self, end: TryEnd, tries: u32) -> bool {
        tries < self.max_attempts && self.on.contains(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: i64) -> ExecutionId {
        ExecutionId(n)
    }

    #[test]
    fn each_wait_is_longer_than_the_one_before_up_to_the_bound() {
        let backoff = Backoff {
            initial_ms: 100,
            factor: Factor(3.0),
            max_ms: 2_000,
            jitter: Factor(0.0),
        };
        let waits: Vec<i64> = [1, 2, 3, 4, 5, u32::MAX]
            .map(|tries| backoff.wait(id(7), Attempt(1), tries))
            .to_vec();
        assert_eq!(waits, [100, 300, 900, 2_000, 2_000, 2_000]);
    }

    #[test]
    fn jitter_shortens_and_tells_attempts_apart() {
        let backoff = Backoff {
            initial_ms: 10_000,
            factor: Factor(1.0),
            max_ms: 10_000,
            jitter: Factor(0.5),
        };
        let wait = |n, attempt| backoff.wait(id(n), Attempt(attempt), 9);
        let waits: Vec<i64> = (1..=1_000).map(|n| wait(n, 1)).collect();
        assert!(waits.iter().all(|wait| (5_000..=10_000).contains(wait)));
        let mean = waits.iter().sum::<i64>() / 1_000;
        assert!((7_200..7_800).contains(&mean), "{mean}");
        assert_ne!(wait(1, 1), wait(1, 2));
        assert_ne!(wait(1, 1), wait(2, 1));
        assert_eq!(wait(1, 1), wait(1, 1), "no chance in it");
        let all = Backoff {
            initial_ms: 1,
            max_ms: 1,
            jitter: Factor(1.0),
            ..backoff
        };
        assert_eq!(all.wait(id(3), Attempt(1), 1), 1, "never at once");
    }

    #[test]
    fn what_is_out_of_bounds_names_its_field() {
        let field = |change: fn(&mut Retry)| {
            let mut retry = Retry::default();
            change(&mut retry);
            let refused = retry.check().err().and_then(|reject| reject.field);
            refused.map(|field| field.trim_start_matches("policy.retry.").to_owned())
        };
        assert_eq!(field(|_| ()), None);
        type Change = fn(&mut Retry);
        let cases: [(Change, &str); 10] = [
            (|it| it.max_attempts = Some(0), "max_attempts"),
            (|it| it.backoff.initial_ms = 0, "backoff.initial_ms"),
            (
                |it| it.backoff.initial_ms = DAY_MS + 1,
                "backoff.initial_ms",
            ),
            (|it| it.backoff.factor = Factor(0.9), "backoff.factor"),
            (|it| it.backoff.factor = Factor(100.1), "backoff.factor"),
            (|it| it.backoff.factor = Factor(f64::NAN), "backoff.factor"),
            (|it| it.backoff.max_ms = 999, "backoff.max_ms"),
            (|it| it.backoff.max_ms = MOST_MS + 1, "backoff.max_ms"),
            (|it| it.backoff.jitter = Factor(-0.1), "backoff.jitter"),
            (
                |it| it.backoff.jitter = Factor(f64::INFINITY),
                "backoff.jitter",
            ),
        ];
        for (change, expected) in cases {
            assert_eq!(field(change).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_list_is_a_set_and_its_words_are_few() {
        let text = r#"{"on":["worker_lost","failed","failed"]}"#;
        let retry: Retry = serde_json::from_str(text).unwrap();
        let on = retry.on.unwrap();
        assert!(on.contains(TryEnd::Failed) && on.contains(TryEnd::WorkerLost));
        assert!(!on.contains(TryEnd::TimedOut));
        let written = serde_json::to_value(retry).unwrap();
        assert_eq!(written["on"], serde_json::json!(["failed", "worker_lost"]));
        let again: Retry = serde_json::from_value(written).unwrap();
        assert_eq!(again, retry);
        let wrong = serde_json::from_str::<Retry>(r#"{"on":["cancelled"]}"#).unwrap_err();
        assert!(wrong.to_string().contains("worker_lost"), "{wrong}");
        let unknown = serde_json::from_str::<Retry>(r#"{"keep_slot":true}"#).unwrap_err();
        assert!(unknown.to_string().contains("keep_slot"), "{unknown}");
        assert_eq!(
            serde_json::to_value(Retry::default()).unwrap()["hold_slot"],
            serde_json::Value::Null,
            "stored as before where it is not said"
        );
    }
}
