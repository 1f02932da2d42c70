//! Declares again what somebody has deleted under running daemons.
//!
//! Whoever consumes a topic declares it, and a subscription whose queue is deleted is rebuilt with
//! its queue. A *binding* that is deleted takes its messages away without anybody noticing but the
//! publisher, whose `mandatory` messages come back. So each topic that sends messages back is
//! mended from here, beside the publishing: its queue must exist, and is bound again. A queue that
//! is not there is declared again only by who has declared it without consuming from it, and not
//! at once: a broker whose queue is deleted and made again in a moment forgets to tell the one that
//! consumed from it.
//!
//! The callers go on as before: they are told that the message is unroutable, and publish it
//! again.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use attune_bus::Topic;
use attune_runtime::{Backoff, LogPace};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::cause::Cause;
use crate::consumer::{self, Declaration};
use crate::link::Link;
use crate::topology::Topology;

/// How long a topic may send messages back before the bus is not well.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long who consumes from a queue that was deleted has to declare it first.
const CONSUMERS_FIRST: Duration = Duration::from_secs(2);
/// A topic that has sent nothing back for so long is forgotten.
const MEMORY: Duration = Duration::from_secs(60);
/// The longest wait between two tries for one topic.
const SLOWEST: Duration = Duration::from_secs(10);
/// How many topics are mended at once; a bus has few hundred.
const MAX_TOPICS: usize = 1_024;

/// Which topics send messages back.
#[derive(Default)]
pub(crate) struct Rebinding {
    /// Held for single statements. Written by publishing and by the task.
    state: Mutex<State>,
    /// Wakes the task: a topic has sent something back.
    news: Notify,
    /// Whether anything has ever reached a queue: before that, nobody may have started who receives.
    has_routed: AtomicBool,
}

#[derive(Default)]
struct State {
    lost: HashMap<Topic, Lost>,
    /// Declared by this bus.
    declared: HashSet<Topic>,
    /// Subscribed to by this bus: a subscription declares its queue itself.
    subscribed: HashSet<Topic>,
}

impl State {
    fn how(&self, topic: &Topic) -> Declaration {
        let is_ours = self.declared.contains(topic) || *topic == Topic::DeadLetters;
        match is_ours && !self.subscribed.contains(topic) {
            true => Declaration::Whole,
            false => Declaration::Binding,
        }
    }
}

/// A topic that sent messages back.
struct Lost {
    since: Instant,
    /// When it last sent something back.
    seen: Instant,
    /// When it was last declared or bound, if it was.
    mended: Option<Instant>,
    retry_at: Instant,
    backoff: Backoff,
    log: LogPace,
}

impl Lost {
    fn new(now: Instant, retry_at: Instant) -> Self {
        Self {
            since: now,
            seen: now,
            mended: None,
            retry_at,
            backoff: Backoff::new(Duration::from_millis(100), SLOWEST),
            log: LogPace::default(),
        }
    }

    /// Whether something came back since it was mended, not too long ago.
    fn is_open(&self, now: Instant) -> bool {
        now - self.seen < MEMORY && self.mended.is_none_or(|mended| mended <= self.seen)
    }
}

impl Rebinding {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that this bus has declared a topic.
    pub(crate) fn note_declared(&self, topic: &Topic) {
        let mut state = self.state();
        if !state.declared.contains(topic) {
            state.declared.insert(topic.clone());
        }
    }

    /// Notes that this bus consumes from a topic.
    pub(crate) fn note_subscribed(&self, topic: &Topic) {
        self.state().subscribed.insert(topic.clone());
    }

    /// Notes that messages which need a queue have reached theirs.
    pub(crate) fn note_routed(&self) {
        if !self.has_routed.load(Ordering::Relaxed) {
            self.has_routed.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that a topic has sent a message back.
    pub(crate) fn note_unroutable(&self, topic: &Topic, now: Instant) {
        let mut state = self.state();
        let retry_at = match state.how(topic) {
            Declaration::Whole => now + CONSUMERS_FIRST,
            Declaration::Binding | Declaration::Sending => now,
        };
        if let Some(lost) = state.lost.get_mut(topic) {
            if !lost.is_open(now) {
                lost.retry_at = lost.retry_at.max(retry_at);
            }
            lost.seen = now;
        } else if state.lost.len() < MAX_TOPICS {
            state.lost.insert(topic.clone(), Lost::new(now, retry_at));
        }
        drop(state);
        self.news.notify_one();
    }

    /// Which topic has been sending messages back for too long, in words.
    pub(crate) fn problem(&self, now: Instant) -> Option<String> {
        let state = self.state();
        let mut open = state.lost.iter().filter(|(_, lost)| lost.is_open(now));
        let (topic, lost) = open.find(|(_, lost)| now - lost.since > PATIENCE)?;
        Some(format!(
            "messages for {topic} have reached no queue for {} s; whoever receives them declares it",
            (now - lost.since).as_secs()
        ))
    }

    /// The topic to mend next and when; forgets what is over.
    fn next(&self, now: Instant) -> Option<(Instant, Topic, Declaration)> {
        let mut state = self.state();
        state.lost.retain(|_, lost| now - lost.seen < MEMORY);
        let open = state.lost.iter().filter(|(_, lost)| lost.is_open(now));
        let (topic, lost) = open.min_by_key(|(_, lost)| lost.retry_at)?;
        Some((lost.retry_at, topic.clone(), state.how(topic)))
    }

    /// Notes what came of a try that began at `started`.
    fn tried(&self, topic: &Topic, started: Instant, outcome: Result<(), Cause>) {
        let mut state = self.state();
        let Some(lost) = state.lost.get_mut(topic) else {
            return;
        };
        lost.retry_at = started + lost.backoff.next_delay();
        let has_routed = self.has_routed.load(Ordering::Relaxed);
        match outcome {
            Ok(()) => {
                lost.mended = Some(started);
                if has_routed {
                    tracing::warn!(
                        bus.topic = %topic,
                        "messages for this topic reached no queue; its queue and binding are \
                         declared again: somebody has deleted them, or no executor had started yet"
                    );
                } else {
                    tracing::info!(
                        bus.topic = %topic,
                        "messages for this topic reached no queue, as before the first start of \
                         whoever receives them; its queue and binding are declared"
                    );
                }
            }
            Err(cause) if lost.log.is_due() => {
                let tries = lost.log.tries();
                if has_routed {
                    tracing::warn!(
                        bus.topic = %topic,
                        %cause,
                        tries,
                        "messages for this topic reach no queue; trying to bind it again"
                    );
                } else {
                    tracing::info!(
                        bus.topic = %topic,
                        %cause,
                        tries,
                        "messages for this topic reach no queue yet: whoever receives them has not \
                         started, as it seems; trying to bind it"
                    );
                }
            }
            Err(_) => {}
        }
    }
}

/// Mends one topic after the other until the bus closes.
pub(crate) struct RebindingTask {
    pub(crate) rebinding: Arc<Rebinding>,
    pub(crate) link: Link,
    pub(crate) topology: Arc<Topology>,
    pub(crate) closing: CancellationToken,
    pub(crate) setup_timeout: Duration,
}

impl RebindingTask {
    pub(crate) async fn run(self) {
        loop {
            let next = self.rebinding.next(Instant::now());
            let due = next.as_ref().map_or_else(Instant::now, |next| next.0);
            tokio::select! {
                () = self.closing.cancelled() => return,
                // A notification sent since the look above is kept for us.
                () = self.rebinding.news.notified() => continue,
                () = sleep_until(due), if next.is_some() => {}
            }
            let Some((_, topic, how)) = next else {
                continue;
            };
            let life = tokio::select! {
                () = self.closing.cancelled() => return,
                life = self.link.life_after(0) => life,
            };
            let Some(life) = life else { return };
            let started = Instant::now();
            let declaring =
                consumer::declare(&life, &self.topology, &topic, how, self.setup_timeout);
            let outcome = tokio::select! {
                () = self.closing.cancelled() => return,
                outcome = declaring => outcome,
            };
            self.rebinding.tried(&topic, started, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_open_until_it_is_bound_after_the_last_message_came_back() {
        let (rebinding, start) = (Rebinding::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(rebinding.next(start).is_none());
        rebinding.note_unroutable(&Topic::Completed, start);
        let (due, topic, how) = rebinding.next(start).unwrap();
        assert_eq!(
            (due, topic, how),
            (start, Topic::Completed, Declaration::Binding)
        );
        assert_eq!(rebinding.problem(at(9)), None, "not yet");
        let problem = rebinding.problem(at(11)).unwrap();
        assert!(problem.contains("execution.completed"), "{problem}");

        rebinding.tried(&Topic::Completed, at(12), Ok(()));
        assert_eq!(rebinding.problem(at(12)), None);
        assert!(rebinding.next(at(12)).is_none());

        // It comes back again: the trouble goes on, and it is tried again.
        rebinding.note_declared(&Topic::Completed);
        rebinding.note_unroutable(&Topic::Completed, at(20));
        assert!(rebinding.problem(at(20)).is_some());
        assert_eq!(rebinding.next(at(20)).unwrap().2, Declaration::Whole);
        assert!(
            rebinding.next(at(80)).is_none(),
            "nobody sends there any more"
        );
        assert_eq!(rebinding.problem(at(80)), None);
    }

    #[test]
    fn tries_become_rarer_but_never_end() {
        let (rebinding, now) = (Rebinding::default(), Instant::now());
        rebinding.note_unroutable(&Topic::Completed, now);
        for _ in 0..20 {
            let failed = Err(Cause::unavailable("no queue"));
            rebinding.tried(&Topic::Completed, now, failed);
            let (due, ..) = rebinding.next(now).unwrap();
            assert!(due <= now + SLOWEST);
        }
    }
}
