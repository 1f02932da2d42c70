//! What the broker does not let this user publish, and when that is tried again.
//!
//! A publish without the right closes its channel, and with it goes what the broker would have said of
//! everything else that was in flight there. So it happens once: from then on messages that go the same
//! way are refused here, and now and then one of them is tried on a channel of its own, which harms
//! nobody, so that a right that is given later is noticed without a new start.
//!
//! Shared by the task that publishes and by who asks how the bus is; no I/O.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use attune_bus::Refusal;
use attune_runtime::LogPace;
use lapin::types::ShortString;
use tokio::time::Instant;

/// After how long a way is tried again for the first time, and at most.
const FIRST_GAP: Duration = Duration::from_secs(1);
const LONGEST_GAP: Duration = Duration::from_secs(30);
/// A way that nobody has asked for for so long is forgotten; if it is still refused, that shows again.
const FORGOTTEN: Duration = Duration::from_secs(300);
/// How many are remembered; the one that was asked for the longest ago makes room.
const REMEMBERED: usize = 1_024;
/// How the broker calls the exchange without a name.
const DEFAULT_EXCHANGE: &str = "amq.default";

/// By which way a message reaches queues.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Route {
    pub(crate) exchange: ShortString,
    pub(crate) key: ShortString,
}

/// What is refused: one key of an exchange, or all of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Scope {
    exchange: ShortString,
    key: Option<ShortString>,
}

impl Scope {
    /// What the broker refused, by what it said, when that is about this way.
    pub(crate) fn said(text: &str, route: &Route) -> Option<Self> {
        let Route { exchange, key } = route;
        let shown = match exchange.as_str() {
            "" => DEFAULT_EXCHANGE,
            name => name,
        };
        let is_about = |kind: &str, name: &str| text.contains(&format!("{kind} '{name}'"));
        if !is_about("exchange", shown) {
            return None;
        }
        let key = match text.contains("topic '") {
            false => None,
            true if is_about("topic", key.as_str()) => Some(key.clone()),
            true => return None,
        };
        Some(Self {
            exchange: exchange.clone(),
            key,
        })
    }

    /// Whether messages that go this way are refused with it.
    pub(crate) fn holds(&self, route: &Route) -> bool {
        self.exchange == route.exchange && self.key.as_ref().is_none_or(|key| *key == route.key)
    }

    fn words(&self, user: &str, said: &str) -> String {
        let exchange = match self.exchange.as_str() {
            "" => DEFAULT_EXCHANGE,
            name => name,
        };
        let what = match &self.key {
            Some(key) => format!("with the routing key `{key}` to the exchange `{exchange}`"),
            None => format!("to the exchange `{exchange}`"),
        };
        format!(
            "the broker does not let the user `{user}` publish {what}; `attune topology permissions` \
             prints the rights that it needs ({said})"
        )
    }
}

/// Whether a message may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pass {
    /// As far as is known.
    Free,
    /// Not now.
    Refused(Refusal),
    /// By itself, on a channel of its own: what becomes of it shows whether others may go.
    Trial,
}

/// Something that is refused.
struct Bar {
    words: String,
    retry_at: Instant,
    gap: Duration,
    asked: Instant,
    /// All that was to go this way are hints, which nobody misses.
    is_hint: bool,
    log: LogPace,
}

/// All that is refused.
#[derive(Default)]
pub(crate) struct Barred {
    /// For short moments only.
    bars: Mutex<HashMap<Scope, Bar>>,
    user: String,
}

impl Barred {
    /// For messages of this user.
    pub(crate) fn new(user: String) -> Self {
        Self {
            bars: Mutex::default(),
            user,
        }
    }

    fn bars<T>(&self, act: impl FnOnce(&mut HashMap<Scope, Bar>) -> T) -> T {
        act(&mut self.bars.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a message may go this way; `is_hint` when nobody misses it. Who is told to try has to say what
    /// came of it, or it is tried again after the next gap.
    pub(crate) fn pass(&self, route: &Route, is_hint: bool, now: Instant) -> Pass {
        self.bars(|bars| {
            if bars.is_empty() {
                return Pass::Free;
            }
            let mut scope = Scope {
                exchange: route.exchange.clone(),
                key: None,
            };
            if !bars.contains_key(&scope) {
                scope.key = Some(route.key.clone());
            }
            let Some(bar) = bars.get_mut(&scope) else {
                return Pass::Free;
            };
            bar.asked = now;
            bar.is_hint &= is_hint;
            if bar.retry_at <= now {
                bar.gap = (bar.gap * 2).min(LONGEST_GAP);
                bar.retry_at = now + bar.gap;
                return Pass::Trial;
            }
            Pass::Refused(Refusal::Forbidden(bar.words.clone()))
        })
    }

    /// Notes that the broker refuses something, with its words; answers why, and whether that is to be told.
    pub(crate) fn refused(
        &self,
        scope: Scope,
        is_hint: bool,
        said: &str,
        now: Instant,
    ) -> (Refusal, bool) {
        let words = scope.words(&self.user, said);
        self.bars(|bars| {
            bars.retain(|_, bar| now < bar.asked + FORGOTTEN);
            if bars.len() >= REMEMBERED && !bars.contains_key(&scope) {
                let oldest = bars.iter().min_by_key(|(_, bar)| bar.asked);
                if let Some(oldest) = oldest.map(|(scope, _)| scope.clone()) {
                    bars.remove(&oldest);
                }
            }
            let bar = bars.entry(scope).or_insert_with(|| Bar {
                words: String::new(),
                retry_at: now + FIRST_GAP,
                gap: FIRST_GAP,
                asked: now,
                is_hint,
                log: LogPace::default(),
            });
            bar.asked = now;
            bar.words.clone_from(&words);
            (Refusal::Forbidden(words), bar.log.is_due())
        })
    }

    /// Notes that the broker took a message that went this way; whether it was refused before.
    pub(crate) fn taken(&self, route: &Route) -> bool {
        self.bars(|bars| {
            let before = bars.len();
            bars.retain(|scope, _| !scope.holds(route));
            bars.len() < before
        })
    }

    /// What is refused at the moment that somebody misses.
    pub(crate) fn problem(&self, now: Instant) -> Option<String> {
        self.bars(|bars| {
            let missed = |bar: &&Bar| !bar.is_hint && now < bar.asked + FORGOTTEN;
            let first = bars.values().filter(missed).min_by_key(|bar| &bar.words);
            first.map(|bar| bar.words.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(exchange: &str, key: &str) -> Route {
        Route {
            exchange: exchange.into(),
            key: key.into(),
        }
    }

    const TOPIC: &str = "ACCESS_REFUSED - access to topic 'event.started' in exchange \
                         'attune.executions' in vhost 'v' refused for user 'u'";
    const EXCHANGE: &str =
        "ACCESS_REFUSED - access to exchange 'amq.default' in vhost 'v' refused for user 'u'";

    #[test]
    fn what_was_refused_is_told_by_the_words_of_the_broker() {
        let event = route("attune.executions", "event.started");
        let scope = Scope::said(TOPIC, &event).unwrap();
        assert!(scope.holds(&event));
        for other in [
            route("attune.executions", "event.accepted"),
            route("attune.lives", "event.started"),
            route("", "event.started"),
        ] {
            assert_eq!(Scope::said(TOPIC, &other), None);
            assert!(!scope.holds(&other));
        }
        let answer = route("", "attune.reply.somebody");
        let scope = Scope::said(EXCHANGE, &answer).unwrap();
        assert!(scope.holds(&answer) && scope.holds(&route("", "another")));
        assert!(!scope.holds(&event));
        assert_eq!(Scope::said(EXCHANGE, &event), None);
    }

    #[test]
    fn what_is_refused_is_tried_now_and_then_until_it_is_taken() {
        let (barred, mut now) = (Barred::new("u".to_owned()), Instant::now());
        let (event, other) = (
            route("attune.executions", "event.started"),
            route("attune.executions", "event.accepted"),
        );
        assert_eq!(barred.pass(&event, true, now), Pass::Free);
        let scope = || Scope::said(TOPIC, &event).unwrap();
        let (why, is_due) = barred.refused(scope(), true, TOPIC, now);
        assert!(is_due);
        let words = why.to_string();
        for part in ["`u`", "`event.started`", "attune topology permissions"] {
            assert!(words.contains(part), "{part} in {words}");
        }
        assert_eq!(barred.pass(&other, false, now), Pass::Free);
        let (mut trials, mut told) = (Vec::new(), 0);
        for second in 0..100 {
            match barred.pass(&event, true, now) {
                Pass::Trial => {
                    trials.push(second);
                    told += usize::from(barred.refused(scope(), true, TOPIC, now).1);
                }
                pass => assert_eq!(pass, Pass::Refused(why.clone())),
            }
            now += Duration::from_secs(1);
        }
        assert_eq!(trials, [1, 3, 7, 15, 31, 61, 91]);
        assert!(told <= trials.len());
        assert_eq!(barred.problem(now), None, "nobody misses a hint");
        barred.pass(&event, false, now);
        assert!(barred.problem(now).unwrap().contains("event.started"));
        assert_eq!(barred.problem(now + FORGOTTEN), None);
        assert!(!barred.taken(&other) && barred.taken(&event));
        assert_eq!(barred.problem(now), None);
        assert_eq!(barred.pass(&event, false, now), Pass::Free);
    }

    #[test]
    fn as_many_as_there_is_room_for_are_remembered() {
        let (barred, now) = (Barred::new("u".to_owned()), Instant::now());
        for number in 0..=REMEMBERED {
            let scope = Scope {
                exchange: "e".into(),
                key: Some(number.to_string().into()),
            };
            let later = now + Duration::from_millis(number as u64);
            barred.refused(scope, false, "no", later);
        }
        assert_eq!(barred.bars(|bars| bars.len()), REMEMBERED);
        assert_eq!(barred.pass(&route("e", "0"), false, now), Pass::Free);
    }
}
