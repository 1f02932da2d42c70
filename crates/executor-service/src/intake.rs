//! Routes rule firings (`enforcement.created`) to the partitions of their actions, in the order in
//! which the broker delivered them. What becomes of each is decided by [`attune_routing::Firings`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use attune_bus::{Bus, Subscriber, Topic};
use attune_core::TraceParent;
use attune_executor::Counter;
use attune_routing::{Bounds, Firings};
use attune_routing_service::{Driver, Observer};
use tokio::sync::watch;

use crate::counters::Counters;
use crate::publisher::MAX_PACK_BYTES;
use crate::service::ExecutorOptions;

/// How many submissions go into one message.
const MAX_PACK: usize = 64;
/// How many bytes of messages are read and not acknowledged.
const WINDOW_BYTES: usize = 8 << 20;

/// The router of one executor; the broker gives the messages to one router at a time.
pub(crate) type Intake = Driver<Firings, Watcher>;

/// Counts what could not be routed, and says what waits.
pub(crate) struct Watcher {
    pub(crate) poisoned: Arc<AtomicU64>,
    pub(crate) trouble: watch::Sender<Option<String>>,
    pub(crate) counters: Arc<Counters>,
}

impl Observer<Option<TraceParent>> for Watcher {
    fn taken(&mut self, _: usize, _: usize) {}

    fn forwarded(&mut self, _: Vec<Option<TraceParent>>) {}

    fn buried(&mut self, _: String) {
        self.poisoned.fetch_add(1, Ordering::Relaxed);
    }

    fn not_answered(&mut self) {
        self.counters.add(Counter::NotAnswered, 1);
    }

    fn trouble(&mut self, trouble: Option<String>) {
        self.trouble.send_replace(trouble);
    }
}

/// How many firings the broker hands over at once: those of a partition that takes nothing must not
/// fill the window of all others too soon.
pub(crate) fn firings_at_once(options: &ExecutorOptions) -> u16 {
    options.prefetch.saturating_mul(4)
}

/// Makes the router for what this subscriber receives.
pub(crate) fn intake(
    options: &ExecutorOptions,
    bus: Arc<dyn Bus>,
    subscriber: Subscriber,
    watcher: Watcher,
) -> Intake {
    let bounds = Bounds {
        max_items: MAX_PACK,
        pack_bytes: MAX_PACK_BYTES,
        max_message_bytes: options.max_message_bytes,
        window: usize::from(firings_at_once(options)),
        window_bytes: WINDOW_BYTES.max(options.max_message_bytes),
    };
    let rules = Firings {
        partitions: options.partitions,
        senders: options.senders.clone(),
    };
    let source = Topic::Enforcements;
    Driver::new(
        rules,
        bounds,
        source,
        Topic::Commands,
        bus,
        subscriber,
        watcher,
    )
}
