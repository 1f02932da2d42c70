//! Requests that nobody can have asked for before, so that the store need not be asked about them.
//!
//! Request ids that rise with time (UUID version 7) mostly lie above all that is stored. When an owner
//! takes a partition, and its lease keeps all others out, the store tells a *gap*: two ids between which
//! no request is stored. What came since is noted here. So an id within the gap that is not noted was
//! never asked for in any partition of this owner, whatever clocks say: clocks only decide how often an
//! id lies within.
//!
//! - The lower end only rises: to that of each gap that is read, and to each note that is given up because
//!   there are too many. The upper end is that of the gap that was *asked for* last: several partitions are
//!   loaded at once, and an answer that comes late says nothing of what was stored, until then, in a partition
//!   that was taken after it was asked for.
//! - Everything above the lower end is noted, also above the gap: what was on its way to the store when
//!   the next gap was read is not in it.
//! - Only what was made within a minute of now counts as unheard. One id that is used for two actions,
//!   which have different owners, is found by nobody while it does (ADR 52).

use std::collections::BTreeSet;

use attune_core::plant::Bug;
use attune_core::{RequestGap, RequestId};

use crate::queue::Millis;

/// How many requests are remembered; an older one is looked up.
const NOTED: usize = 65_536;
/// How far the time of an id may be from now, in milliseconds.
const NEAR: Millis = 60_000;
/// Where a gap is looked for is so much later than now: above all ids of now.
const AHEAD: Millis = 10 * NEAR;

/// What is known of the requests that are stored.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    /// The ends of the gap, once one was read.
    gap: Option<(RequestId, RequestId)>,
    /// The number of the last question whose answer is known.
    asked: u64,
    noted: BTreeSet<RequestId>,
}

impl Unheard {
    /// Around which id the gap is to be read.
    pub(super) fn around(wall: Millis) -> RequestId {
        RequestId::first_of(wall.saturating_add(AHEAD))
    }

    /// The store has told a gap, when it was asked for the time with this number: of all that was written
    /// before a partition was taken.
    pub(super) fn learn(&mut self, asked: u64, read: RequestGap) {
        let above = read.above.unwrap_or(RequestId::LOWEST);
        let (mut above, mut below) = (above, read.below.unwrap_or(RequestId::HIGHEST));
        if let Some((above_before, below_before)) = self.gap {
            above = above.max(above_before);
            if asked < self.asked {
                below = below_before;
            }
        }
        self.asked = self.asked.max(asked);
        let above = if Bug::HeardOfNone.is_planted() {
            RequestId::LOWEST
        } else {
            above
        };
        self.gap = Some((above, below));
        self.noted = self.noted.split_off(&above);
        self.noted.remove(&above);
    }

    /// Notes that a request was asked for; whether that was never so before.
    pub(super) fn note(&mut self, id: RequestId, wall: Millis) -> bool {
        let Some((above, below)) = &mut self.gap else {
            return false;
        };
        let Some(made) = id.made_at() else {
            return false;
        };
        if id <= *above || !self.noted.insert(id) {
            return false;
        }
        if self.noted.len() > NOTED
            && let Some(oldest) = self.noted.pop_first()
        {
            *above = oldest;
        }
        id < *below && wall.abs_diff(made) <= NEAR.unsigned_abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const NOW: Millis = 1_796_000_000_000;

    fn id(time: Millis, n: u64) -> RequestId {
        let bits = u128::from(n) & ((1 << 62) - 1);
        let first = RequestId::first_of(time).0.as_u128();
        RequestId(Uuid::from_u128(first | 7 << 76 | 2 << 62 | bits))
    }

    fn gap(above: Option<RequestId>, below: Option<RequestId>) -> RequestGap {
        RequestGap { above, below }
    }

    fn open() -> Unheard {
        let mut unheard = Unheard::default();
        unheard.learn(1, gap(None, None));
        unheard
    }

    #[test]
    fn nothing_is_unheard_before_a_gap_is_known() {
        let mut unheard = Unheard::default();
        assert!(!unheard.note(id(NOW, 1), NOW));
        unheard.learn(1, gap(None, None));
        assert!(unheard.note(id(NOW, 2), NOW));
    }

    #[test]
    fn each_is_unheard_once() {
        let mut unheard = open();
        for n in 0..3 {
            assert!(unheard.note(id(NOW, n), NOW), "{n}");
        }
        for n in 0..3 {
            assert!(!unheard.note(id(NOW, n), NOW), "{n}");
        }
    }

    #[test]
    fn what_is_stored_bounds_the_gap_on_both_sides() {
        let mut unheard = Unheard::default();
        let (above, below) = (id(NOW, 5), id(NOW + 9, 5));
        unheard.learn(1, gap(Some(above), Some(below)));
        for (time, n, expected) in [
            (0, 4, false),
            (0, 5, false),
            (0, 6, true),
            (9, 4, true),
            (9, 5, false),
            (9, 6, false),
        ] {
            assert_eq!(unheard.note(id(NOW + time, n), NOW), expected, "{time} {n}");
        }
    }

    /// It was on its way to the store when the second gap was read, which says nothing of it.
    #[test]
    fn what_was_noted_outside_of_a_gap_is_not_unheard_within_the_next() {
        let mut unheard = Unheard::default();
        unheard.learn(1, gap(None, Some(id(NOW, 5))));
        assert!(!unheard.note(id(NOW, 7), NOW), "above the gap");
        unheard.learn(1, gap(None, None));
        assert!(!unheard.note(id(NOW, 7), NOW));
        assert!(unheard.note(id(NOW, 8), NOW));
        // A gap that was read too long ago opens nothing that was closed.
        unheard.learn(1, gap(Some(id(NOW, 9)), None));
        unheard.learn(1, gap(None, None));
        assert!(!unheard.note(id(NOW, 9), NOW));
        assert!(!unheard.note(id(NOW, 6), NOW));
    }

    #[test]
    fn only_what_says_that_it_was_made_about_now_is_unheard() {
        let mut unheard = open();
        for time in [-60_001, 60_001, 3_600_000, -NOW] {
            assert!(!unheard.note(id(NOW + time, 1), NOW), "{time}");
        }
        for time in [-60_000, 60_000] {
            assert!(unheard.note(id(NOW + time, 1), NOW), "{time}");
        }
        let random = Uuid::from_u128(id(NOW, 1).0.as_u128() ^ 3 << 76);
        assert_eq!(random.get_version_num(), 4);
        assert!(!unheard.note(RequestId(random), NOW));
        assert!(!unheard.note(RequestId(Uuid::nil()), NOW));
        assert!(!unheard.note(RequestId(Uuid::max()), NOW));
    }

    #[test]
    fn what_is_given_up_is_heard() {
        let mut unheard = open();
        let most = NOTED as u64;
        for n in 0..most + 10 {
            assert!(unheard.note(id(NOW, n), NOW));
        }
        assert_eq!(unheard.noted.len(), NOTED);
        for n in [0, 9, 10, most] {
            assert!(!unheard.note(id(NOW, n), NOW), "{n}");
        }
    }

    /// It was asked for before the other partition was taken, in which this was stored meanwhile.
    #[test]
    fn an_answer_that_comes_late_opens_nothing() {
        let mut unheard = Unheard::default();
        unheard.learn(2, gap(None, Some(id(NOW, 5))));
        unheard.learn(1, gap(None, None));
        assert!(!unheard.note(id(NOW, 5), NOW));
        unheard.learn(3, gap(Some(id(NOW, 5)), None));
        assert!(unheard.note(id(NOW, 6), NOW));
    }

    #[test]
    fn a_gap_is_looked_for_above_all_ids_of_now() {
        let around = Unheard::around(NOW);
        assert!(around > id(NOW + NEAR, u64::MAX));
        assert!(around < id(NOW + 20 * NEAR, 0));
        assert!(Unheard::around(Millis::MAX) > around);
    }

    /// Partitions come and go, are loaded side by side, others write where this owner does not, and what it
    /// writes arrives late: whatever is unheard of is nowhere in its partition, and was never asked for.
    #[test]
    fn whatever_happens_nothing_unheard_is_stored_or_under_way() {
        let decided: u32 = (0..300).map(|seed| Worlds::new(seed).run(2_000)).sum();
        assert!(decided > 1_000, "only {decided} were unheard of");
    }

    const PARTITIONS: u64 = 3;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Held {
        Others,
        /// Taken; the gap was asked for, and perhaps read.
        Loading(u64, Option<RequestGap>),
        Served,
    }

    /// A store, this owner and others, in every order that chance makes.
    struct Worlds {
        chance: u64,
        now: Millis,
        asked: u64,
        held: [Held; PARTITIONS as usize],
        stored: BTreeSet<(u64, RequestId)>,
        under_way: Vec<(u64, RequestId)>,
        unheard: Unheard,
        decided: u32,
    }

    impl Worlds {
        fn new(seed: u64) -> Self {
            Self {
                chance: seed,
                now: NOW,
                asked: 0,
                held: [Held::Others; PARTITIONS as usize],
                stored: BTreeSet::new(),
                under_way: Vec::new(),
                unheard: Unheard::default(),
                decided: 0,
            }
        }

        /// SplitMix64.
        fn draw(&mut self, below: u64) -> u64 {
            self.chance = self.chance.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.chance;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % below
        }

        /// Few ids, around now and within the time in which a gap is looked for.
        fn an_id(&mut self) -> RequestId {
            let time = self.now + Millis::try_from(self.draw(5)).unwrap() * 10_000 - 20_000;
            id(time - time % 10_000, self.draw(3))
        }

        fn read(&self) -> RequestGap {
            // So that ids lie on both sides of it.
            let around = RequestId::first_of(self.now + 5_000);
            let ids: BTreeSet<_> = self.stored.iter().map(|(_, id)| *id).collect();
            RequestGap {
                above: ids.range(..around).next_back().copied(),
                below: ids.range(around..).next().copied(),
            }
        }

        fn arrive(&mut self, all_of: Option<u64>) {
            let under_way = std::mem::take(&mut self.under_way);
            for (partition, id) in under_way {
                if all_of.map_or(self.draw(2) == 0, |of| of == partition) {
                    self.stored.insert((partition, id));
                } else {
                    self.under_way.push((partition, id));
                }
            }
        }

        /// How many were unheard of.
        fn run(mut self, steps: u32) -> u32 {
            for _ in 0..steps {
                self.step();
            }
            self.decided
        }

        fn step(&mut self) {
            let partition = self.draw(PARTITIONS);
            let place = usize::try_from(partition).unwrap();
            match (self.held[place], self.draw(12)) {
                (_, 0) => self.now += 1_000,
                (_, 1) => self.arrive(None),
                (Held::Others, 2..=7) => {
                    let id = self.an_id();
                    self.stored.insert((partition, id));
                }
                (Held::Others, _) => {
                    self.asked += 1;
                    self.held[place] = Held::Loading(self.asked, None);
                }
                (Held::Loading(asked, None), _) => {
                    self.held[place] = Held::Loading(asked, Some(self.read()));
                }
                (Held::Loading(asked, Some(gap)), 2..=4) => {
                    self.unheard.learn(asked, gap);
                    self.held[place] = Held::Served;
                }
                (Held::Loading(..), _) => {}
                // The next owner waits for what is under way.
                (Held::Served, 2) => {
                    self.arrive(Some(partition));
                    self.held[place] = Held::Others;
                }
                (Held::Served, _) => {
                    let id = self.an_id();
                    if self.unheard.note(id, self.now) {
                        let known = (partition, id);
                        assert!(!self.stored.contains(&known), "{id} is stored");
                        assert!(!self.under_way.contains(&known), "{id} is under way");
                        self.decided += 1;
                    }
                    self.under_way.push((partition, id));
                }
            }
        }
    }
}
