//! Grants of which nothing was heard: what they are about may be lost, or nobody has had time for it yet.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{PartitionId, WorkerId};

use super::{Owner, Stage};
use crate::queue::Millis;

/// A grant of which nothing was heard for so long may be lost: a worker says within a fifth of it that it runs,
/// that it has ended or that it comes back.
const UNHEARD: Millis = 1_500;
/// How often that is looked for.
const LOOK_EVERY: Millis = 1_000;
/// The longest time between two syncs for the same silence. Where ends wait for an owner that is behind, each
/// sync has them told again: more of them would leave it further behind.
const LONGEST: Millis = 32_000;
/// What a worker has said of others counts for so long; it says so again every second.
const ELSEWHERE: Millis = 3_000;

/// When who is silent was asked, and when it is asked again.
#[derive(Debug, Default)]
pub(super) struct Silence {
    look_at: Millis,
    asked: BTreeMap<(PartitionId, WorkerId), (Millis, Millis)>,
}

impl Silence {
    pub(super) fn look_at(&self) -> Millis {
        self.look_at
    }

    /// Whom to ask of those that are silent: each ever more rarely, while it stays so.
    fn due(
        &mut self,
        now: Millis,
        silent: BTreeSet<(PartitionId, WorkerId)>,
    ) -> Vec<(PartitionId, WorkerId)> {
        self.asked.retain(|of, _| silent.contains(of));
        let mut due = Vec::new();
        for of in silent {
            let (at, wait) = self.asked.entry(of).or_insert((now, LOOK_EVERY));
            if *at <= now {
                (*at, *wait) = (now + *wait, (*wait * 2).min(LONGEST));
                due.push(of);
            }
        }
        due
    }
}

impl Owner {
    /// Asks lives to compare of which nothing was heard about something that they were granted.
    pub(super) fn look_for_silence(&mut self, now: Millis) {
        if now < self.links.silence.look_at {
            return;
        }
        self.links.silence.look_at = now + LOOK_EVERY;
        self.roster.lock().forget_elsewhere(now - ELSEWHERE);
        self.links.round_is_over();
        let since = self.clock.at(now) - UNHEARD;
        let mut silent = BTreeSet::new();
        for (id, place) in &self.places {
            if let Stage::Serving(partition) = &place.stage {
                let workers = partition.unheard_of(since).into_iter();
                silent.extend(workers.map(|worker| (*id, worker)));
            }
        }
        silent.retain(|(_, worker)| self.roster.lock().knows(*worker));
        for (id, worker) in self.links.silence.due(now, silent) {
            self.links.want_sync(id, worker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stays_silent_is_asked_ever_more_rarely_and_at_once_when_it_is_silent_again() {
        let of = (PartitionId(1), WorkerId::fresh());
        let mut silence = Silence::default();
        let mut asked = Vec::new();
        for second in 0..100 {
            if !silence.due(second * 1_000, BTreeSet::from([of])).is_empty() {
                asked.push(second);
            }
        }
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 63, 95]);
        assert!(silence.due(100_000, BTreeSet::new()).is_empty());
        assert_eq!(silence.due(101_000, BTreeSet::from([of])), [of]);
    }
}
