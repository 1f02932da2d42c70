//! Keeps one connection to the broker, one life after the other.
//!
//! Whoever finds something wrong with a life (an error, a stream that ended, an answer that does
//! not come) calls [`Life::fail`]; the supervisor then drops the whole connection and makes a new
//! one. Nothing is repaired: what survives of a broken connection is not known well enough.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use attune_bus::BusError;
use attune_runtime::{Backoff, LogPace};
use futures_util::StreamExt;
use lapin::{Connection, Event};
use tokio::sync::watch;
use tokio::time::{Instant, interval, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cause::Cause;
use crate::dial::{Dialed, Dialer};

/// A life of at least this length counts as a success: the next wait is short again.
const STABLE: Duration = Duration::from_secs(10);
/// After so many connections that were lost, with none between them that lasted, the next one is
/// not trusted until it has.
const RELAPSES: u32 = 3;
/// So many heartbeats a life must last after one that fell silent: one that carries small messages alone, and no
/// others, is found dead after two or three. After one that the broker ended [`STABLE`] is enough.
const LASTING: u32 = 6;
/// How often the state of the connection is looked at, whatever its events say.
const LOOK: Duration = Duration::from_secs(1);

/// One connection while it lasts.
pub(crate) struct Life {
    /// Rises with every life of the link; the first is 1.
    pub(crate) generation: u64,
    dialed: Dialed,
    broken: CancellationToken,
    past: Past,
    /// The first cause given. Touched by whoever fails the life, read by its supervisor.
    cause: Mutex<Option<String>>,
    /// What the broker said when it blocked the connection. Written by the supervisor.
    blocked: Mutex<Option<String>>,
}

/// What is known of a life when it begins.
#[derive(Debug, Clone, Default)]
struct Past {
    /// Connections on which the broker answered no more: it cannot be reached well.
    silent: Losses,
    /// Connections on which it still answered. The way was not what was wrong, but something that this
    /// process does, or a queue that confirms nothing; that would go with a partition to its next owner.
    answering: Losses,
}

impl Past {
    /// Notes the end of a life.
    fn add(&mut self, answers: bool, loss: Loss) {
        if loss.has_lasted() {
            self.silent.count = 0;
            self.answering.count = 0;
        }
        let of_its_kind = if answers {
            &mut self.answering
        } else {
            &mut self.silent
        };
        of_its_kind.add(loss);
    }
}

/// The end of a life.
struct Loss {
    /// How long it lasted, and how long it should have.
    lasted: Duration,
    lasting: Duration,
    cause: String,
}

impl Loss {
    fn has_lasted(&self) -> bool {
        self.lasted >= self.lasting
    }
}

/// Connections that were lost in one of two ways, since one that lasted.
#[derive(Debug, Clone, Default)]
struct Losses {
    count: u32,
    /// Why the last of them ended.
    cause: String,
    /// Until then the next one may end like those.
    doubted_until: Option<Instant>,
}

impl Losses {
    fn add(&mut self, loss: Loss) {
        self.count += 1;
        self.cause = loss.cause;
        self.doubted_until = Some(Instant::now() + loss.lasting);
    }

    /// Why the next one may not last.
    fn doubt(&self) -> Option<String> {
        let is_young = self
            .doubted_until
            .is_some_and(|until| Instant::now() < until);
        let Self { count, cause, .. } = self;
        (*count >= RELAPSES && is_young)
            .then(|| format!("it was lost {count} times in a row, the last time because: {cause}"))
    }
}

impl Life {
    fn new(generation: u64, dialed: Dialed, past: Past) -> Self {
        let broken = CancellationToken::new();
        let (cause, blocked) = (Mutex::default(), Mutex::default());
        Self {
            generation,
            dialed,
            broken,
            past,
            cause,
            blocked,
        }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.dialed.connection
    }

    /// Says that this connection is of no use any more. The first cause is kept.
    pub(crate) fn fail(&self, cause: impl Into<String>) {
        set_if_none(&self.cause, cause.into());
        self.broken.cancel();
    }

    /// Whether the life has failed; another one follows.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_cancelled()
    }

    /// Resolves when the life has failed. Cancel safe.
    pub(crate) async fn failed(&self) -> String {
        self.broken.cancelled().await;
        self.cause()
    }

    fn cause(&self) -> String {
        let cause = self.cause.lock().unwrap_or_else(PoisonError::into_inner);
        cause.clone().unwrap_or_else(|| "unknown".to_owned())
    }

    /// Why the broker may not be reached on it for long.
    fn doubt(&self) -> Option<String> {
        self.past.silent.doubt()
    }

    /// Why it is of little use at the moment: the broker takes nothing, or it is lost again and again.
    fn objection(&self) -> Option<String> {
        self.blocked().or_else(|| self.past.answering.doubt())
    }

    /// Why the broker takes nothing from this connection at the moment, if so. It says it only
    /// to connections that publish, and only once they do.
    pub(crate) fn blocked(&self) -> Option<String> {
        if !self.connection().status().blocked() {
            return None;
        }
        let reason = self
            .blocked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let reason = reason.unwrap_or_else(|| "low on memory or disk".to_owned());
        Some(format!("blocked by the broker: {reason}"))
    }
}

fn set_if_none(slot: &Mutex<Option<String>>, text: String) {
    slot.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert(text);
}

/// What a link is doing.
#[derive(Clone)]
pub(crate) enum State {
    /// Between two lives.
    Down(Cause),
    /// Connected.
    Up(Arc<Life>),
    /// Closed for good.
    Closed,
}

/// A handle of a supervised connection.
#[derive(Clone)]
pub(crate) struct Link {
    states: watch::Receiver<State>,
}

impl Link {
    /// Supervises a connection, beginning with one that exists, until `closing` is cancelled.
    pub(crate) fn start(
        dialer: Dialer,
        first: Dialed,
        closing: CancellationToken,
        tasks: &TaskTracker,
    ) -> Self {
        let life = Arc::new(Life::new(1, first, Past::default()));
        let (states, receiver) = watch::channel(State::Up(Arc::clone(&life)));
        let supervisor = Supervisor {
            dialer,
            states,
            closing,
            backoff: Backoff::default(),
        };
        tasks.spawn(supervisor.run(life));
        Self { states: receiver }
    }

    /// The first life after generation `seen`; `None` when the link is closed. Cancel safe.
    pub(crate) async fn life_after(&self, seen: u64) -> Option<Arc<Life>> {
        let mut states = self.states.clone();
        let state = states
            .wait_for(|state| match state {
                State::Up(life) => life.generation > seen,
                State::Down(_) => false,
                State::Closed => true,
            })
            .await
            .ok()?;
        match &*state {
            State::Up(life) => Some(Arc::clone(life)),
            State::Down(_) | State::Closed => None,
        }
    }

    /// Whether the connection stands, and is likely to; that the broker takes nothing from anybody at
    /// the moment does not count.
    pub(crate) fn reach(&self) -> Result<(), BusError> {
        self.look(Life::doubt)
    }

    /// Whether the connection can be used right now, and if not, why.
    pub(crate) fn check(&self) -> Result<(), BusError> {
        self.look(Life::objection)
    }

    /// Whether there is a life, and `objection` has nothing against it.
    fn look(&self, objection: fn(&Life) -> Option<String>) -> Result<(), BusError> {
        let objection = match &*self.states.borrow() {
            State::Closed => return Err(BusError::Closed),
            State::Down(cause) => return Err(cause.clone().into()),
            State::Up(life) if life.is_broken() => Some(life.cause()),
            State::Up(life) => objection(life),
        };
        objection.map_or(Ok(()), |why| Err(BusError::Unavailable(why)))
    }
}

struct Supervisor {
    dialer: Dialer,
    states: watch::Sender<State>,
    closing: CancellationToken,
    backoff: Backoff,
}

impl Supervisor {
    async fn run(mut self, first: Arc<Life>) {
        let mut life = first;
        let mut past = Past::default();
        loop {
            let born = Instant::now();
            let ended = self.watch(&life).await;
            if let Some(cause) = &ended {
                // Also for those ends that were seen here and not reported by a user.
                life.fail(cause.as_str());
                let place = &self.dialer.endpoint.place;
                tracing::warn!(
                    bus.connection = %self.dialer.name,
                    bus.generation = life.generation,
                    cause = %cause,
                    "the connection to the broker at {place} is lost; connecting again"
                );
                let cause = Cause::unavailable(format!("{place}: {cause}"));
                self.states.send_replace(State::Down(cause));
            }
            let answers = ended.is_some() && life.dialed.answers().await;
            // Before the next connection: what this one still holds must have gone back, and
            // what it has not yet sent must not come after newer messages.
            if answers || ended.is_none() {
                life.dialed.hang_up("the client starts anew").await;
            } else {
                life.dialed.socket.cut();
            }
            if ended.is_none() {
                break;
            }
            let lasted = born.elapsed();
            if lasted >= STABLE {
                self.backoff.reset();
            }
            let Some(dialed) = self.dial().await else {
                break;
            };
            let lasting = match answers {
                true => STABLE,
                false => self.dialer.heartbeat() * LASTING,
            };
            let loss = Loss {
                lasted,
                lasting,
                cause: life.cause(),
            };
            past.add(answers, loss);
            life = Arc::new(Life::new(life.generation + 1, dialed, past.clone()));
            self.dialer.reconnects.add(1);
            tracing::info!(
                bus.connection = %self.dialer.name,
                bus.generation = life.generation,
                "connected to the broker again"
            );
            self.states.send_replace(State::Up(Arc::clone(&life)));
        }
        self.states.send_replace(State::Closed);
    }

    /// Waits for the end of a life; answers why it ended, or `None` when the link closes.
    async fn watch(&self, life: &Life) -> Option<String> {
        let mut events = std::pin::pin!(life.connection().events_listener());
        let mut look = interval(LOOK);
        loop {
            tokio::select! {
                () = self.closing.cancelled() => return None,
                cause = life.failed() => return Some(cause),
                event = events.next() => match event {
                    None => return Some("its events ended".to_owned()),
                    // The broker has closed one channel; whoever uses it has been told.
                    Some(Event::Error(error)) if error.is_amqp_soft_error() => {}
                    Some(Event::Error(error)) => return Some(error.to_string()),
                    Some(Event::ConnectionBlocked(reason)) => {
                        tracing::warn!(
                            bus.connection = %self.dialer.name,
                            bus.reason = %reason,
                            "the broker takes no messages for the time being"
                        );
                        *life.blocked.lock().unwrap_or_else(PoisonError::into_inner) =
                            Some(reason);
                    }
                    Some(Event::ConnectionUnblocked) => {
                        tracing::info!(
                            bus.connection = %self.dialer.name,
                            "the broker takes messages again"
                        );
                    }
                    Some(_) => {}
                },
                // An end before the listener existed has left no event.
                _ = look.tick() => if !life.connection().status().connected() {
                    return Some("it is not connected any more".to_owned());
                },
            }
        }
    }

    /// Connects, however long it takes; `None` when the link closes.
    async fn dial(&mut self) -> Option<Dialed> {
        let mut log = LogPace::default();
        loop {
            tokio::select! {
                () = self.closing.cancelled() => return None,
                () = sleep(self.backoff.next_delay()) => {}
            }
            let dialed = tokio::select! {
                () = self.closing.cancelled() => return None,
                dialed = self.dialer.dial() => dialed,
            };
            match dialed {
                Ok(dialed) => return Some(dialed),
                Err(cause) => {
                    if log.is_due() {
                        tracing::warn!(
                            bus.connection = %self.dialer.name,
                            cause = %cause,
                            tries = log.tries(),
                            "the broker cannot be reached; trying again"
                        );
                    }
                    self.states.send_replace(State::Down(cause));
                }
            }
        }
    }
}
