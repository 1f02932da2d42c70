//! What happens, for those who listen: one subscription of the process to the bus, while anybody does, and a
//! bounded row of events from which each takes at its own pace. Who is too slow loses the oldest, and is told
//! how many.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use attune_bus::{Bus, BusError, Subscriber, Subscription, Topic};
use attune_core::policy::EventKind;
use attune_messages::decode_batch;
use attune_messages::v1::ActionEvent;
use tokio::sync::{broadcast, watch};
use tokio::time::{MissedTickBehavior, interval};
use tracing::debug;

/// How many events wait for the slowest who listens.
const ROOM: usize = 4096;
/// How many messages of events the bus brings at once.
const PREFETCH: u16 = 64;
/// The largest message that is read, in bytes: the most that `broker.max_message_bytes` may be.
const MAX_MESSAGE_BYTES: usize = 128 << 20;
/// How often it is looked whether anybody listens still.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// An event, as it is told to everybody.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) kind: EventKind,
    pub(crate) action_ref: String,
    /// The event as JSON.
    pub(crate) json: String,
}

/// What those who listen have in common.
#[derive(Debug, Clone)]
struct Line {
    events: broadcast::Sender<Arc<Told>>,
    /// Whether the bus brings events; nothing yet before that is known.
    is_open: watch::Receiver<Option<bool>>,
}

/// The way from the bus to those who listen.
pub(crate) struct Events {
    bus: Arc<dyn Bus>,
    /// Absent while nobody listens. Taken by who begins to listen, and by the task that ends.
    line: Mutex<Option<Line>>,
}

impl Events {
    pub(crate) fn new(bus: Arc<dyn Bus>) -> Arc<Self> {
        Arc::new(Self {
            bus,
            line: Mutex::default(),
        })
    }

    fn line(&self) -> std::sync::MutexGuard<'_, Option<Line>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens from now on; `None` when the bus cannot be reached.
    pub(crate) async fn listen(self: &Arc<Self>) -> Option<broadcast::Receiver<Arc<Told>>> {
        let (receiver, mut is_open) = self.join();
        let opened = is_open.wait_for(Option::is_some).await;
        opened
            .is_ok_and(|is_open| *is_open == Some(true))
            .then_some(receiver)
    }

    fn join(
        self: &Arc<Self>,
    ) -> (
        broadcast::Receiver<Arc<Told>>,
        watch::Receiver<Option<bool>>,
    ) {
        let mut line = self.line();
        if let Some(line) = &*line {
            return (line.events.subscribe(), line.is_open.clone());
        }
        let (events, receiver) = broadcast::channel(ROOM);
        let (opened, is_open) = watch::channel(None);
        let made = Line {
            events: events.clone(),
            is_open: is_open.clone(),
        };
        *line = Some(made);
        drop(line);
        tokio::spawn(Arc::clone(self).run(events, opened));
        (receiver, is_open)
    }

    /// Passes events on while anybody listens.
    async fn run(
        self: Arc<Self>,
        events: broadcast::Sender<Arc<Told>>,
        opened: watch::Sender<Option<bool>>,
    ) {
        let subscribed = self.subscribe().await;
        if let Err(error) = &subscribed {
            debug!(%error, "nobody can listen to events");
        }
        opened.send_replace(Some(subscribed.is_ok()));
        let Ok(mut subscriber) = subscribed else {
            *self.line() = None;
            return;
        };
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                delivery = subscriber.next() => {
                    let Some(delivery) = delivery else { break };
                    subscriber.settler().ack(&[delivery.tag]).await;
                    Self::pass_on(&delivery.body, &events);
                }
                _ = look.tick() => {}
            }
            if self.is_over(&events) {
                return;
            }
        }
        *self.line() = None;
    }

    async fn subscribe(&self) -> Result<Subscriber, BusError> {
        let subscription = Subscription {
            topic: Topic::Events,
            prefetch: PREFETCH,
        };
        self.bus.subscribe(subscription).await
    }

    fn pass_on(body: &[u8], events: &broadcast::Sender<Arc<Told>>) {
        let read = decode_batch::<ActionEvent>(body, MAX_MESSAGE_BYTES);
        let Ok(read) = read.inspect_err(|error| debug!(%error, "events cannot be read")) else {
            return;
        };
        for event in read {
            let Ok(json) = serde_json::to_string(&event) else {
                continue;
            };
            let told = Told {
                kind: event.kind,
                action_ref: event.action_ref,
                json,
            };
            // That nobody listens any more is seen next.
            events.send(Arc::new(told)).ok();
        }
    }

    /// Ends the line where nobody listens any more. Who comes now makes a new one.
    fn is_over(&self, events: &broadcast::Sender<Arc<Told>>) -> bool {
        let mut line = self.line();
        let is_over = events.receiver_count() == 0;
        if is_over {
            *line = None;
        }
        is_over
    }
}
