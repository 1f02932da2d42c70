//! How many were accepted in the hour, the day or the month, for a quota of an action.
//!
//! A window never begins again: where the clock of an owner is behind that of the one before, the later
//! window goes on until it ends.

use std::collections::{BTreeSet, HashMap};

use attune_core::policy::{CountRule, Quota, Words};
use attune_core::{ActionSpec, GroupKey, Reject};

use crate::queue::Millis;

/// The form in which a count is stored.
const FORM: u8 = 1;

/// What a quota has counted in its window.
#[derive(Debug, Clone)]
pub(crate) struct QuotaMeter {
    quota: Quota,
    rule: CountRule,
    /// From when on until when it counts.
    window: (Millis, Millis),
    counts: HashMap<GroupKey, u32>,
    /// What was counted in the round under way.
    fresh: BTreeSet<GroupKey>,
}

/// An acceptance that a quota counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaClaim {
    /// Of which window: its beginning.
    pub window: Millis,
    /// When that ends.
    pub until: Millis,
    /// How many may be accepted in it.
    pub max: u32,
    /// The [mark](CountRule::mark) of the rule that says for whom they are counted.
    pub mark: i64,
    /// For whom this one counts.
    pub key: GroupKey,
}

impl QuotaMeter {
    /// The meters of an action, with what those before have counted that count the same.
    pub(crate) fn of(spec: &ActionSpec, earlier: Vec<Self>) -> Vec<Self> {
        let mut earlier = earlier;
        let quotas = spec.policy.quotas.iter();
        let meters = quotas.map(|quota| {
            let rule = CountRule::of(spec, &quota.by);
            let same = earlier
                .iter()
                .position(|it| it.quota.per == quota.per && it.rule == rule);
            let quota = quota.clone();
            match same.map(|index| earlier.swap_remove(index)) {
                Some(known) => Self { quota, ..known },
                None => Self {
                    quota,
                    rule,
                    window: (Millis::MIN, Millis::MIN),
                    counts: HashMap::new(),
                    fresh: BTreeSet::new(),
                },
            }
        });
        meters.collect()
    }

    pub(crate) fn quota(&self) -> &Quota {
        &self.quota
    }

    /// Tells this meter from the others of its action.
    pub(crate) fn name(&self) -> String {
        let (per, mark) = (self.quota.per, self.rule.mark());
        match mark {
            0 => format!("quotas/{per}"),
            mark => format!("quotas/{per}/{mark:016x}"),
        }
    }

    fn pass(&mut self, now: Millis) {
        if now >= self.window.1 {
            self.window = self.quota.per.window(now);
            // The memory of all who were counted goes, too.
            self.counts = HashMap::new();
            self.fresh.clear();
        }
    }

    /// Checks that it can be told for whom a submission counts.
    ///
    /// # Errors
    /// A [`Reject`] that names a place, when what stands there is too long.
    pub(crate) fn check(&self, words: &Words<'_>) -> Result<(), Reject> {
        self.rule.check(words)
    }

    /// What one more would count as who says this.
    ///
    /// # Errors
    /// For how many milliseconds no more are accepted, when as many were as may be.
    pub(crate) fn claim(&mut self, now: Millis, words: &Words<'_>) -> Result<QuotaClaim, Millis> {
        self.pass(now);
        let (window, until) = self.window;
        let claim = QuotaClaim {
            window,
            until,
            max: self.quota.max,
            mark: self.rule.mark(),
            key: self.rule.key(words),
        };
        match self.counts.get(&claim.key) {
            Some(count) if *count >= self.quota.max => Err(until.saturating_sub(now)),
            _ => Ok(claim),
        }
    }

    /// Counts an acceptance.
    pub(crate) fn count(&mut self, key: GroupKey) {
        *self.counts.entry(key).or_default() += 1;
        self.fresh.insert(key);
    }

    /// What was counted in the round under way, as it is stored, and when it says nothing any more.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = (GroupKey, Vec<u8>, Millis)> + '_ {
        self.fresh.iter().map(|key| {
            let mut bytes = vec![FORM];
            bytes.extend(self.window.0.to_be_bytes());
            bytes.extend(self.counts.get(key).copied().unwrap_or(0).to_be_bytes());
            (*key, bytes, self.window.1)
        })
    }

    /// What was counted in the round under way is stored.
    pub(crate) fn settle(&mut self) {
        self.fresh.clear();
    }

    /// Takes in what another owner has counted. What cannot be read counts as used up.
    pub(crate) fn restore(&mut self, now: Millis, key: GroupKey, state: &[u8]) {
        self.pass(now);
        let (start, count) = read(state).unwrap_or((self.window.0, u32::MAX));
        if start > self.window.0 {
            self.window = self.quota.per.window(start);
            self.counts = HashMap::new();
        }
        if start == self.window.0 {
            self.counts.insert(key, count);
        }
    }
}

fn read(state: &[u8]) -> Option<(Millis, u32)> {
    let (form, rest) = state.split_first()?;
    let (start, count) = rest.split_first_chunk()?;
    let count = u32::from_be_bytes(count.try_into().ok()?);
    (*form == FORM).then_some((Millis::from_be_bytes(*start), count))
}

#[cfg(test)]
mod tests {
    use attune_core::policy::Calendar;
    use proptest::prelude::*;

    use super::*;

    const HOUR: Millis = 3_600_000;

    fn spec(per: Calendar, max: u32, by: &[&str]) -> ActionSpec {
        let mut spec = ActionSpec::core_pack().remove(0);
        let by = by.iter().map(|path| path.parse().unwrap()).collect();
        spec.policy.quotas = vec![Quota { per, max, by }];
        spec
    }

    fn says(user: u8) -> attune_core::Submission {
        let mut submission = attune_core::Submission::new("core.echo");
        submission.requested_by = Some(format!("user{user}"));
        submission
    }

    /// What happens next: so many of a user ask, some time passes, or another owner goes on.
    type Step = (u8, u32, Millis, bool);

    proptest! {
        #![proptest_config(crate::thorough())]

        /// Against a list of all acceptances, over takeovers in the middle of rounds.
        #[test]
        fn no_window_of_the_calendar_has_more(
            max in 1..5u32,
            steps in proptest::collection::vec((0..3u8, 0..4u32, 0..HOUR / 2, any::<bool>()), 1..40),
        ) {
            let steps: Vec<Step> = steps;
            let spec = spec(Calendar::Hour, max, &["user"]);
            let mut meter = QuotaMeter::of(&spec, Vec::new()).remove(0);
            let (mut now, mut stored, mut accepted) = (1_000_000_000_000, HashMap::new(), Vec::new());
            for (user, asking, later, takeover) in steps {
                for _ in 0..asking {
                    match meter.claim(now, &says(user).words()) {
                        Ok(claim) => {
                            meter.count(claim.key);
                            accepted.push((user, now.div_euclid(HOUR)));
                        }
                        Err(wait) => {
                            prop_assert_eq!(wait, (now.div_euclid(HOUR) + 1) * HOUR - now);
                            let window = (user, now.div_euclid(HOUR));
                            let count = accepted.iter().filter(|it| **it == window).count();
                            prop_assert_eq!(count, max as usize, "refused without need");
                        }
                    }
                }
                stored.extend(meter.fresh().map(|(key, state, _)| (key, state)));
                meter.settle();
                now += later;
                if takeover {
                    meter = QuotaMeter::of(&spec, Vec::new()).remove(0);
                    for (key, state) in &stored {
                        meter.restore(now, *key, state);
                    }
                }
            }
            for window in &accepted {
                let count = accepted.iter().filter(|it| *it == window).count();
                prop_assert!(count <= max as usize);
            }
        }
    }

    #[test]
    fn what_was_counted_stays_counted_as_long_as_it_counts_the_same() {
        let mut meters = QuotaMeter::of(&spec(Calendar::Day, 2, &[]), Vec::new());
        for _ in 0..2 {
            let claim = meters[0].claim(HOUR, &says(1).words()).unwrap();
            meters[0].count(claim.key);
        }
        assert_eq!(meters[0].claim(HOUR, &says(2).words()), Err(23 * HOUR));
        let mut three = QuotaMeter::of(&spec(Calendar::Day, 3, &[]), meters.clone());
        assert!(three[0].claim(HOUR, &says(2).words()).is_ok());
        let mut one = QuotaMeter::of(&spec(Calendar::Day, 1, &[]), meters.clone());
        assert!(one[0].claim(HOUR, &says(2).words()).is_err());
        let mut of_users = QuotaMeter::of(&spec(Calendar::Day, 2, &["user"]), meters);
        assert!(
            of_users[0].claim(HOUR, &says(2).words()).is_ok(),
            "another count"
        );
        assert_ne!(of_users[0].name(), one[0].name());
    }

    #[test]
    fn a_window_never_begins_again() {
        let spec = spec(Calendar::Hour, 1, &[]);
        let mut meter = QuotaMeter::of(&spec, Vec::new()).remove(0);
        let claim = meter.claim(5 * HOUR, &says(1).words()).unwrap();
        meter.count(claim.key);
        let stored: Vec<_> = meter.fresh().collect();
        let mut next = QuotaMeter::of(&spec, Vec::new()).remove(0);
        for (key, state, until) in stored {
            assert_eq!(until, 6 * HOUR);
            next.restore(4 * HOUR + 1, key, &state);
        }
        let words = says(1);
        assert_eq!(next.claim(4 * HOUR + 1, &words.words()), Err(2 * HOUR - 1));
        assert!(next.claim(6 * HOUR, &words.words()).is_ok());
        next.restore(6 * HOUR, GroupKey::default(), &[9]);
        assert!(
            next.claim(6 * HOUR, &words.words()).is_err(),
            "what nobody can read"
        );
    }
}
