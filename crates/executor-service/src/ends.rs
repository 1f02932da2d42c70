//! Whether ends of runs reach this executor. Where they do not, slots stay taken, and nothing else shows it: runs may
//! take long.
//!
//! Two things are looked at: that messages of a part of the system are refused because its user is none of
//! `broker.parts`, and what waits in the queues from which completion listeners take the ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use attune_bus::{Bus, Depth, Topic};
use attune_executor::owner::Trouble;
use attune_executor::queue::Millis;

use crate::driver::boot_now;

/// How often the queues are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// A worker tells an end again within this time, so that none that is refused comes means that none is, in
/// milliseconds.
const QUIET: Millis = 60_000;
/// That ends are refused is told when it has gone on for so long: whoever is no part sends one, and a worker tells
/// its ends again and again.
const GOES_ON: Millis = 2_000;
/// So many that wait are more than a listener leaves that is well.
const MANY: u32 = 1_000;
/// How long many may wait, and how long any may without one being taken, in milliseconds.
const BEHIND: Millis = 60_000;
const STILL: Millis = 30_000;
/// Where listeners take the ends.
const PLACES: [(Topic, &str); 2] = [
    (Topic::Completed, "attune.completed"),
    (Topic::CompletedKept, "attune.completed.kept"),
];

/// What is known of the ends of runs on their way here.
#[derive(Debug, Default)]
pub(crate) struct Ends(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    refused: Option<Refused>,
    places: [Place; 2],
}

/// Ends that came from a user who is no part of the system.
#[derive(Debug)]
struct Refused {
    since: Millis,
    last: Millis,
    /// Who it was, as far as the broker vouches for somebody.
    user: Option<String>,
}

/// A queue of ends, as it was seen last, and since when that has been so.
#[derive(Debug, Default)]
struct Place {
    waiting: u32,
    /// Something waits, and nobody takes anything.
    unread: Option<Millis>,
    /// As many wait as before, and some do.
    still: Option<Millis>,
    /// Many wait.
    many: Option<Millis>,
}

impl Place {
    fn seen(&mut self, now: Millis, depth: Depth) {
        let since = |before: Option<Millis>, holds: bool| holds.then(|| before.unwrap_or(now));
        let waits = depth.messages > 0;
        self.unread = since(self.unread, waits && depth.consumers == 0);
        let is_still = waits && depth.messages == self.waiting;
        self.still = since(self.still, is_still);
        self.many = since(self.many, depth.messages >= MANY);
        self.waiting = depth.messages;
    }

    /// The same words as long as it is so: each change is written down.
    fn trouble(&self, now: Millis, name: &str) -> Option<Trouble> {
        let lasts = |since: &Millis, time| now - since >= time;
        let still = self.still.filter(|since| lasts(since, STILL));
        let many = self.many.filter(|since| lasts(since, BEHIND));
        let (since, words) = if let Some(since) = self.unread {
            let words = format!("nobody takes them from {name}: start a completion listener");
            (since, words)
        } else if let Some(since) = still {
            let words =
                format!("none is taken from {name}: see the log of the completion listener");
            (since, words)
        } else {
            let words =
                format!("more than {MANY} wait in {name}: completion listeners are too slow");
            (many?, words)
        };
        Some(Trouble {
            for_ms: now - since,
            words,
        })
    }
}

impl Ends {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends of runs from this user were refused.
    pub(crate) fn refused(&self, now: Millis, user: Option<&str>) {
        let mut state = self.state();
        let before = state.refused.take().filter(|it| now - it.last < QUIET);
        state.refused = Some(Refused {
            since: before.map_or(now, |it| it.since),
            last: now,
            user: user.map(str::to_owned),
        });
    }

    /// What keeps ends of runs from coming, if anything does.
    pub(crate) fn trouble(&self, now: Millis) -> Option<Trouble> {
        let state = self.state();
        let refused = state.refused.as_ref().filter(|it| now - it.last < QUIET);
        // One alone may be somebody who is none of ours.
        let refused = refused.filter(|it| it.last - it.since >= GOES_ON);
        let refused = refused.map(|it| {
            let user = it.user.as_deref();
            let user = user.map_or("a user that is not known".to_owned(), |it| {
                format!("`{it}`")
            });
            Trouble {
                for_ms: now - it.since,
                words: format!("{user} sends them, and is none of broker.parts: add it there"),
            }
        });
        let places = state.places.iter().zip(PLACES);
        let places = places.filter_map(|(place, (_, name))| place.trouble(now, name));
        refused.into_iter().chain(places).max_by_key(|it| it.for_ms)
    }

    /// Looks at the queues until nobody wants to know any more. What cannot be seen is no trouble: a broker that is
    /// away is told as that.
    pub(crate) async fn watch(self: Arc<Self>, bus: Arc<dyn Bus>) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            for (at, (topic, _)) in PLACES.iter().enumerate() {
                let depth = bus.depth(topic).await.ok().flatten().unwrap_or_default();
                self.state().places[at].seen(boot_now(), depth);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(messages: u32, consumers: u32) -> Depth {
        Depth {
            messages,
            consumers,
        }
    }

    #[test]
    fn what_nobody_takes_is_told_and_what_is_taken_is_not() {
        let mut place = Place::default();
        let told = |place: &Place, now| place.trouble(now, "attune.completed").map(|it| it.words);
        // A listener that keeps up: what waits changes.
        for second in 0..100 {
            place.seen(second * 1_000, depth(1 + (second as u32 % 7), 1));
            assert_eq!(told(&place, second * 1_000), None, "{second}");
        }
        place.seen(100_000, depth(5, 0));
        place.seen(106_000, depth(6, 0));
        let trouble = place.trouble(106_000, "attune.completed").unwrap();
        assert_eq!(trouble.for_ms, 6_000);
        assert_eq!(
            trouble.words,
            "nobody takes them from attune.completed: start a completion listener"
        );
        // It came back, and stands still: nothing fits into the queue any more, or nothing comes.
        for second in 107..140 {
            place.seen(second * 1_000, depth(9, 1));
        }
        assert_eq!(
            told(&place, 139_000).as_deref(),
            Some("none is taken from attune.completed: see the log of the completion listener")
        );
        place.seen(140_000, depth(0, 1));
        assert_eq!(told(&place, 140_000), None);
        for second in 141..210 {
            place.seen(second * 1_000, depth(1_000 + second as u32, 2));
        }
        let words = told(&place, 209_000).unwrap();
        assert!(words.contains("more than 1000 wait"), "{words}");
    }

    #[test]
    fn a_part_whose_user_is_not_named_is_told_while_it_goes_on() {
        let ends = Ends::default();
        ends.refused(1_000, Some("eve"));
        assert_eq!(ends.trouble(1_000), None, "one alone");
        ends.refused(9_000, Some("attune-listener"));
        let trouble = ends.trouble(9_500).unwrap();
        assert_eq!(trouble.for_ms, 8_500);
        assert!(trouble.words.contains("`attune-listener`"), "{trouble:?}");
        assert!(trouble.words.contains("broker.parts"), "{trouble:?}");
        assert_eq!(ends.trouble(69_000), None, "it is over");
        ends.refused(70_000, None);
        assert_eq!(ends.trouble(70_000), None, "it begins anew");
    }
}
