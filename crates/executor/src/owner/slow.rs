//! A store that does what it is asked, and takes long over it. One round follows the other, so while
//! it is at one round nothing is decided about anything: that is told, although nothing fails.

use super::{Owner, Trouble};
use crate::queue::Millis;

/// An answer to a round that takes this long is slow.
const SLOW: Millis = 2_000;
/// So long after the last slow one they are over.
const OVER: Millis = 30_000;
/// So far back their share is looked at, in milliseconds.
const LOOK_BACK: Millis = 60_000;
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
    /// Since when they take most of the time.
    since: Millis,
    /// When the last came, and how long it took.
    last: Millis,
    took: Millis,
    count: u32,
    /// The time that is looked back at begins here, and how much of it they took.
    from: Millis,
    total: Millis,
}

impl Seen {
    /// Whether they take most of the time: one hiccup now and then does not.
    fn is_most(&self, now: Millis) -> bool {
        2 * self.total >= now - self.from
    }
}

impl Slow {
    /// A round waits for the store.
    pub(super) fn asks(&mut self, now: Millis) {
        self.asked = now;
    }

    /// The store has answered. Says how long it took.
    pub(super) fn answered(&mut self, now: Millis) -> Millis {
        let took = now - self.asked;
        if took >= SLOW {
            self.note(now, took);
        }
        took
    }

    /// An answer took long.
    fn note(&mut self, now: Millis, took: Millis) {
        let mut seen = self.seen(now).unwrap_or(Seen {
            since: self.asked,
            last: now,
            took,
            count: 0,
            from: self.asked,
            total: 0,
        });
        (seen.last, seen.took) = (now, took);
        seen.count += 1;
        seen.total += took;
        if !seen.is_most(now) {
            seen.since = now;
        }
        // What was long ago counts for less and less.
        while now - seen.from > LOOK_BACK {
            seen.from += (now - seen.from) / 2;
            seen.total /= 2;
        }
        self.seen = Some(seen);
    }

    fn seen(&self, now: Millis) -> Option<Seen> {
        self.seen.filter(|seen| now - seen.last < OVER)
    }

    /// For how long slow answers have taken most of the time, and how long the last one took.
    fn trouble(&self, now: Millis) -> Option<(Millis, Millis)> {
        let seen = self.seen(now)?;
        (seen.count >= OFTEN && seen.is_most(now)).then(|| (now - seen.since, seen.took))
    }
}

impl Owner {
    /// For how long the store has been slow, while it is.
    pub fn slow(&self, now: Millis) -> Option<Trouble> {
        let (for_ms, took) = self.slow.trouble(now)?;
        Some(Trouble {
            for_ms,
            words: format!(
                "the store takes long over what is decided, {}.{} s the last time, and nothing \
                 else is decided meanwhile",
                took / 1_000,
                took % 1_000 / 100
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers that take `took` milliseconds, one every `every`, up to `until`.
    fn answers(slow: &mut Slow, now: &mut Millis, took: Millis, every: Millis, until: Millis) {
        while *now < until {
            slow.asks(*now);
            slow.answered(*now + took);
            // What is quick in between changes nothing.
            slow.asks(*now + took);
            slow.answered(*now + took + 10);
            *now += every;
        }
    }

    #[test]
    fn answers_that_come_late_again_and_again_are_one_trouble() {
        let (mut slow, mut now) = (Slow::default(), 0);
        answers(&mut slow, &mut now, 6_000, 7_000, 70_000);
        assert_eq!(slow.trouble(69_000), Some((69_000, 6_000)));
        assert!(slow.seen(69_000 + 29_999).is_some());
        assert!(slow.seen(69_000 + 30_000).is_none());
        now = 200_000;
        answers(&mut slow, &mut now, 3_000, 3_000, 206_000);
        assert_eq!(slow.trouble(206_000), None, "two are a chance");
        answers(&mut slow, &mut now, 3_000, 3_000, 209_000);
        assert_eq!(slow.trouble(209_000), Some((9_000, 3_000)));
    }

    /// What was hours ago says nothing about now, neither that all was well nor that it was not.
    #[test]
    fn their_share_is_that_of_the_last_minute() {
        let hours = 10 * 3_600_000;
        let (mut slow, mut now) = (Slow::default(), 0);
        answers(&mut slow, &mut now, 2_000, 20_000, hours);
        assert_eq!(slow.trouble(now), None);
        answers(&mut slow, &mut now, 6_000, 7_000, hours + 120_000);
        let (for_ms, _) = slow.trouble(now).unwrap();
        assert!((60_000..120_000).contains(&for_ms), "{for_ms}");
        answers(&mut slow, &mut now, 2_000, 20_000, hours + 300_000);
        assert_eq!(slow.trouble(now), None);
    }
}
