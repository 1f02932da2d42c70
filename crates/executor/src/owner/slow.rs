//! A store that does what it is asked, and takes long over it. One round follows the other, so while
//! it is at one round nothing is decided about anything: that is told, although nothing fails.

use super::{Owner, Trouble};
use crate::queue::Millis;

/// An answer to a round that takes this long is slow.
const SLOW: Millis = 2_000;
/// So long after the last slow one they are over.
const OVER: Millis = 30_000;
/// So many are no chance.
const OFTEN: u32 = 3;

/// How long the store takes over rounds.
#[derive(Debug, Default)]
pub(super) struct Slow {
    /// When what a round waits for was asked.
    asked: Millis,
    seen: Option<Seen>,
}

/// Slow answers that followed one another.
#[derive(Debug, Clone, Copy)]
struct Seen {
    /// When the first was asked for.
    since: Millis,
    /// When the last came, and how long it took.
    last: Millis,
    took: Millis,
    count: u32,
    /// How long all of them took.
    total: Millis,
}

impl Slow {
    /// A round waits for the store.
    pub(super) fn asks(&mut self, now: Millis) {
        self.asked = now;
    }

    /// The store has answered.
    pub(super) fn answered(&mut self, now: Millis) {
        let took = now - self.asked;
        if took < SLOW {
            return;
        }
        let before = self.seen(now);
        self.seen = Some(Seen {
            since: before.map_or(self.asked, |before| before.since),
            last: now,
            took,
            count: before.map_or(1, |before| before.count + 1),
            total: took + before.map_or(0, |before| before.total),
        });
    }

    fn seen(&self, now: Millis) -> Option<Seen> {
        self.seen.filter(|seen| now - seen.last < OVER)
    }
}

impl Owner {
    /// For how long the store has been slow, while it is.
    pub fn slow(&self, now: Millis) -> Option<Trouble> {
        let seen = self.slow.seen(now)?;
        let for_ms = now - seen.since;
        // One hiccup after the other is none.
        let most = 2 * seen.total >= for_ms;
        (seen.count >= OFTEN && most).then(|| Trouble {
            for_ms,
            words: format!(
                "the store takes long over what is decided, {}.{} s the last time, and nothing \
                 else is decided meanwhile",
                seen.took / 1_000,
                seen.took % 1_000 / 100
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_come_late_again_and_again_are_one_trouble() {
        let mut slow = Slow::default();
        for at in (0..70_000).step_by(7_000) {
            slow.asks(at);
            slow.answered(at + 6_000);
            // What is quick in between changes nothing.
            slow.asks(at + 6_010);
            slow.answered(at + 6_020);
        }
        let seen = slow.seen(69_000 + 29_999).unwrap();
        assert_eq!((seen.since, seen.took, seen.count), (0, 6_000, 10));
        assert_eq!(seen.total, 60_000);
        assert!(slow.seen(69_000 + 30_000).is_none());
        slow.asks(200_000);
        slow.answered(203_000);
        let seen = slow.seen(203_000).unwrap();
        assert_eq!((seen.since, seen.count), (200_000, 1));
    }
}
