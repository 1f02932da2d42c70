//! What is logged again and again at one place of the program: a bound for all places, whatever paces they
//! have of their own ([`LogPace`](crate::LogPace)).
//!
//! Within a minute the first lines of a place are all written, then only every one whose number is a power
//! of two; that one says how many were left out before it (`log.left_out`). Lines below `info` are written
//! as they come: whoever asks for them wants them.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::counters::Counter;

/// So many lines of one place are written within [`WINDOW`] before some are left out.
const FREE: u64 = 16;
/// After this time a place begins anew.
const WINDOW: Duration = Duration::from_secs(60);

thread_local! {
    /// How many lines were left out before the one that this thread is about to write.
    static LEFT_OUT: Cell<u64> = const { Cell::new(0) };
}

/// How many lines of its place were left out before the line that this thread writes; asked once a line.
pub(crate) fn left_out() -> u64 {
    LEFT_OUT.take()
}

/// What was logged at one place lately.
#[derive(Debug)]
struct Place {
    since: Instant,
    lines: u64,
    left_out: u64,
}

/// Leaves lines out.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    places: Mutex<HashMap<Identifier, Place>>,
    left_out: Counter,
}

impl Repeats {
    /// How many lines were left out.
    pub(crate) fn counter(&self) -> Counter {
        self.left_out.clone()
    }

    /// Whether a line of a place is to be written, and if so how many were left out before it.
    fn admit(&self, place: Identifier, now: Instant) -> Option<u64> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry(place).or_insert(Place {
            since: now,
            lines: 0,
            left_out: 0,
        });
        if now.saturating_duration_since(place.since) >= WINDOW {
            (place.since, place.lines) = (now, 0);
        }
        place.lines += 1;
        if place.lines <= FREE || place.lines.is_power_of_two() {
            return Some(std::mem::take(&mut place.left_out));
        }
        place.left_out += 1;
        self.left_out.add(1);
        None
    }
}

impl<S: Subscriber> Layer<S> for Repeats {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let about = event.metadata();
        if *about.level() > Level::INFO {
            return true;
        }
        let Some(left_out) = self.admit(about.callsite(), Instant::now()) else {
            return false;
        };
        LEFT_OUT.set(left_out);
        true
    }
}

#[cfg(test)]
mod tests {
    use tracing::{debug, warn};

    use super::*;
    use crate::telemetry::tests::{capture, capture_as};

    #[test]
    fn a_place_that_repeats_itself_is_heard_ever_more_rarely() {
        let (guard, log) = capture();
        for tries in 1..=300 {
            warn!(tries, "refused; trying again");
        }
        drop(guard);
        let text = log.text();
        let lines: Vec<&str> = text.lines().collect();
        let told: Vec<u64> = lines
            .iter()
            .map(|line| {
                let (_, tries) = line.split_once("tries=").unwrap();
                tries.split(' ').next().unwrap().parse().unwrap()
            })
            .collect();
        let first: Vec<u64> = (1..=16).collect();
        assert_eq!(told, [&first[..], &[32, 64, 128, 256]].concat());
        assert!(lines[16].ends_with("log.left_out=15"), "{}", lines[16]);
        assert!(lines[19].ends_with("log.left_out=127"), "{}", lines[19]);
        assert!(!lines[15].contains("left_out"), "{}", lines[15]);
    }

    #[test]
    fn json_says_what_was_left_out_as_a_field() {
        let (guard, log) = capture_as("info", attune_config::LogFormat::Json);
        for tries in 1..=32 {
            warn!(tries, "refused; trying again");
        }
        drop(guard);
        let text = log.text();
        let last: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(
            (&last["tries"], &last["log.left_out"]),
            (&32.into(), &15.into())
        );
    }

    #[test]
    fn what_is_asked_for_is_written_and_other_places_are_not_concerned() {
        let (guard, log) = capture_as("debug", attune_config::LogFormat::Text);
        for number in 0..100 {
            debug!(number, "looking");
        }
        warn!("another place");
        drop(guard);
        assert_eq!(log.text().lines().count(), 101);
    }

    #[test]
    fn after_a_minute_a_place_begins_anew() {
        let (repeats, place) = (Repeats::default(), place());
        let start = Instant::now();
        let told = |from: u64| {
            let at = start + Duration::from_secs(from);
            (0..40)
                .filter(|_| repeats.admit(place.clone(), at).is_some())
                .count()
        };
        assert_eq!((told(0), told(59), told(60)), (17, 1, 17));
        assert_eq!(repeats.counter().get(), 120 - 35);
    }

    fn place() -> Identifier {
        let span = tracing::info_span!(parent: None, "a place");
        span.metadata()
            .map_or_else(|| unreachable!(), |about| about.callsite())
    }
}
