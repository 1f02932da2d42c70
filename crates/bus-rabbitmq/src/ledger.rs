//! Which deliveries of a subscription are outstanding, and how to acknowledge with few frames.

use std::collections::BTreeSet;

use attune_bus::DeliveryTag;

/// Which share of a window may be outstanding before the broker is told at once what is done with, and
/// not a moment later with others: it must not run empty. With a smaller share each acknowledgement of a
/// lone action is a write of its own to the broker's log, in front of the next message.
const TELL_SHARE: usize = 3;

/// The books of one subscription. Pure.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// The life whose tags count. Others name deliveries of a channel that is gone; the numbers
    /// of a new channel start again, so an old tag would settle a wrong message.
    generation: u64,
    /// Delivered and not acknowledged towards the broker.
    outstanding: BTreeSet<u64>,
    /// Of these, those that are done with.
    done: BTreeSet<u64>,
}

/// What to tell the broker.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Acks {
    /// Everything up to this number, in one frame.
    pub(crate) up_to: Option<u64>,
    /// These, one by one.
    pub(crate) single: Vec<u64>,
}

impl Ledger {
    /// Begins the next life: nothing is outstanding, and older tags mean nothing any more.
    pub(crate) fn begin(&mut self) {
        self.generation += 1;
        self.outstanding.clear();
        self.done.clear();
    }

    /// Notes a delivery; the broker's numbers rise.
    pub(crate) fn delivered(&mut self, number: u64) -> DeliveryTag {
        self.outstanding.insert(number);
        DeliveryTag {
            generation: self.generation,
            number,
        }
    }

    /// Notes that messages are done with; answers whether there is anything new to tell. Tags of
    /// another life and repeated ones are ignored: an unknown tag would make the broker close the
    /// channel.
    pub(crate) fn settle(&mut self, tags: &[DeliveryTag]) -> bool {
        let mut news = false;
        for tag in tags {
            if tag.generation == self.generation && self.outstanding.contains(&tag.number) {
                news |= self.done.insert(tag.number);
            }
        }
        news
    }

    /// Whether these were all delivered in this life: those of another one come again.
    pub(crate) fn is_current(&self, tags: &[DeliveryTag]) -> bool {
        tags.iter().all(|tag| tag.generation == self.generation)
    }

    /// Whether the broker must be told now, of a window of so many: it could soon deliver nothing more.
    pub(crate) fn must_tell(&self, window: usize) -> bool {
        !self.done.is_empty() && self.outstanding.len() * TELL_SHARE >= window
    }

    /// Takes what is to be told. `multiple` settles *everything* up to a number, so it reaches
    /// only as far as nothing below is still being worked on.
    pub(crate) fn take(&mut self) -> Acks {
        let mut acks = Acks::default();
        while let Some(&lowest) = self.outstanding.first()
            && self.done.remove(&lowest)
        {
            self.outstanding.pop_first();
            acks.up_to = Some(lowest);
        }
        for number in std::mem::take(&mut self.done) {
            self.outstanding.remove(&number);
            acks.single.push(number);
        }
        acks
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn ledger(deliveries: u64) -> (Ledger, Vec<DeliveryTag>) {
        let mut ledger = Ledger::default();
        ledger.begin();
        let tags = (1..=deliveries)
            .map(|number| ledger.delivered(number))
            .collect();
        (ledger, tags)
    }

    #[test]
    fn the_lowest_collapse_and_the_rest_is_named() {
        let (mut ledger, tags) = ledger(8);
        assert!(ledger.settle(&[tags[2], tags[0], tags[1], tags[5]]));
        assert_eq!(
            ledger.take(),
            Acks {
                up_to: Some(3),
                single: vec![6]
            }
        );
        assert_eq!(ledger.take(), Acks::default());
        // 6 is settled already, so the run goes on past it.
        assert!(ledger.settle(&[tags[4], tags[3], tags[6]]));
        assert_eq!(
            ledger.take(),
            Acks {
                up_to: Some(7),
                single: vec![]
            }
        );
    }

    #[test]
    fn unknown_repeated_and_old_tags_are_ignored() {
        let (mut ledger, tags) = ledger(3);
        assert!(ledger.settle(&tags[..1]));
        assert!(!ledger.settle(&tags[..1]));
        assert_eq!(ledger.take().up_to, Some(1));
        assert!(!ledger.settle(&tags[..1]), "told already");
        assert!(!ledger.settle(&[DeliveryTag {
            generation: 1,
            number: 99
        }]));
        ledger.begin();
        ledger.delivered(1);
        ledger.delivered(2);
        assert!(!ledger.settle(&tags), "of the life before");
        assert_eq!(ledger.take(), Acks::default());
    }

    /// A broker that does what it is told, and is asked about nothing it does not know.
    #[test]
    fn exactly_what_is_settled_is_told_whatever_the_order() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let (mut ledger, mut tags) = ledger(60);
            let mut unacknowledged: BTreeSet<u64> = (1..=60).collect();
            let mut settled = BTreeSet::new();
            if random.random_bool(0.7) {
                tags.shuffle(&mut random);
            }
            while !tags.is_empty() {
                let count = random.random_range(1..=tags.len().min(12));
                let some: Vec<_> = tags.drain(..count).collect();
                ledger.settle(&some);
                settled.extend(some.iter().map(|tag| tag.number));
                if random.random_bool(0.6) {
                    let acks = ledger.take();
                    if let Some(last) = acks.up_to {
                        assert!(unacknowledged.contains(&last), "seed {seed}");
                        unacknowledged.retain(|&number| number > last);
                    }
                    for number in acks.single {
                        assert!(unacknowledged.remove(&number), "seed {seed}");
                    }
                    assert_eq!(unacknowledged.len(), 60 - settled.len(), "seed {seed}");
                    assert!(unacknowledged.is_disjoint(&settled), "seed {seed}");
                }
            }
        }
    }

    #[test]
    fn a_window_is_never_left_empty() {
        let (mut ledger, tags) = ledger(16);
        assert!(!ledger.must_tell(16), "full, but nothing to tell");
        ledger.settle(&tags[..1]);
        assert!(
            ledger.must_tell(16),
            "the broker has nothing left to deliver"
        );
        assert!(ledger.must_tell(48), "a third is outstanding");
        assert!(!ledger.must_tell(49), "there is time to wait for others");
        ledger.settle(&tags[1..]);
        assert!(
            !ledger.must_tell(49),
            "it goes by what is outstanding, not by what is done with"
        );
        ledger.take();
        assert!(!ledger.must_tell(1));
    }
}
