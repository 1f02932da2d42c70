//! A worker that can start no program takes nothing, says so, and goes on when it can again; and
//! what else keeps a worker from its work is told from here.

use std::sync::Arc;
use std::time::Duration;

use attune_bus::{Shelf, Subscriber};
use attune_runtime::Backoff;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Phase, Service};
use crate::clock::BootInstant;
use crate::error::WorkerError;
use crate::worker::{of_pool, subscribe};

/// The longest pause between two looks whether programs can be started.
const SLOWEST: Duration = Duration::from_secs(10);
/// Being well for so long makes the next pause short again.
const STABLE: Duration = Duration::from_secs(10);
/// So long what was claimed waits for its start. Then the lease is given up, so that others get it.
const PATIENCE: Duration = Duration::from_secs(60);

/// How far the worker is with starting again.
pub(crate) struct Stuck {
    /// Since when nothing can be started; none while all is well.
    since: Option<Instant>,
    /// When it was over the last time.
    over: Option<Instant>,
    backoff: Backoff,
    /// Looks until programs can be started.
    pub(super) looking: Option<JoinHandle<Backoff>>,
    /// Subscribes to the pool again.
    pub(super) subscribing: Option<JoinHandle<Result<Subscriber, WorkerError>>>,
}

impl Default for Stuck {
    fn default() -> Self {
        Self {
            since: None,
            over: None,
            backoff: Backoff::new(Duration::from_millis(250), SLOWEST),
            looking: None,
            subscribing: None,
        }
    }
}

impl Stuck {
    pub(super) fn is_stuck(&self) -> bool {
        self.since.is_some()
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        if let Some(looking) = &self.looking {
            looking.abort();
        }
    }
}

impl Service {
    /// A run could not be started, by no fault of its own. What is not claimed goes back to the
    /// bus, for others.
    pub(super) fn cannot_start(&mut self) {
        let gate = self.runs.gate();
        let (Some(why), false) = (gate.why(), self.stuck.is_stuck()) else {
            return;
        };
        tracing::error!(
            reason = %why,
            waiting_count = gate.waiting(),
            "this worker can start nothing and takes no more executions until it can"
        );
        self.counters.stuck.set(1);
        self.counters.stuck_total.add(1);
        self.stuck.since = Some(Instant::now());
        if self.stuck.over.is_some_and(|over| over.elapsed() > STABLE) {
            self.stuck.backoff.reset();
        }
        self.requested = None;
        self.stuck.subscribing = None;
        self.inbox.give_up_waiting();
        let (runner, mut backoff) = (self.runs.runner(), self.stuck.backoff.clone());
        self.stuck.looking = Some(tokio::spawn(async move {
            loop {
                tokio::time::sleep(backoff.next_delay()).await;
                match runner.look().await {
                    Ok(()) => return backoff,
                    Err(why) => gate.close(&why),
                }
            }
        }));
    }

    /// Programs can be started again: what waits begins, and more is taken.
    pub(super) fn can_start(&mut self, backoff: Backoff) {
        tracing::warn!("this worker can start programs again");
        self.counters.stuck.set(0);
        self.stuck.backoff = backoff;
        self.stuck.since = None;
        self.stuck.over = Some(Instant::now());
        self.runs.gate().open();
    }

    /// Subscribes to the pool again, when nothing of the subscription before is left.
    pub(super) fn subscribe_again(&mut self) {
        let serving = matches!(self.phase, Phase::Serving) && !self.stuck.is_stuck();
        if !serving
            || self.requested.is_some()
            || self.stuck.subscribing.is_some()
            || self.pending.claim.is_some()
        {
            return;
        }
        self.inbox.start_over();
        let (bus, stop) = (Arc::clone(&self.bus), self.shutdown.clone());
        let pool = of_pool(&self.options);
        self.stuck.subscribing = Some(tokio::spawn(
            async move { subscribe(&bus, pool, &stop).await },
        ));
    }

    pub(super) fn subscribed(&mut self, subscribed: Result<Subscriber, WorkerError>) {
        match subscribed {
            Ok(_) if self.stuck.is_stuck() || !matches!(self.phase, Phase::Serving) => {}
            Ok(subscriber) => {
                // What lay on the shelf of the subscription before has gone back to the bus.
                let (bus, settler) = (Arc::clone(&self.bus), subscriber.settler());
                let pool = of_pool(&self.options);
                self.shelf = Shelf::new(bus, pool, settler, self.shutdown.clone());
                self.requested = Some(subscriber);
            }
            Err(WorkerError::Stopped) => {}
            Err(error) => {
                tracing::error!(%error, "the worker cannot subscribe again; it stops");
                self.bus_is_closed();
            }
        }
    }

    /// Looks at what time alone changes.
    pub(super) fn look(&mut self) {
        self.pending.look_at = Some(Instant::now() + self.look_interval());
        let waiting = self.runs.gate().waiting();
        let late = self
            .stuck
            .since
            .is_some_and(|since| since.elapsed() > PATIENCE);
        if late
            && waiting > 0
            && waiting == self.runs.len()
            && let Some(life) = &self.life
        {
            tracing::error!(
                worker.id = %life.worker(),
                waiting_count = waiting,
                "nothing could be started for long; the lease is given up, so that others run it"
            );
            self.leases.lost(life);
        }
        self.tell_trouble();
    }

    /// How often time is looked at.
    pub(super) fn look_interval(&self) -> Duration {
        (self.options.lease_ttl / 12).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// Says what keeps the worker from its work, or that nothing does.
    pub(super) fn tell_trouble(&self) {
        let trouble = self.trouble();
        self.troubles.send_if_modified(|told| {
            let changed = *told != trouble;
            *told = trouble;
            changed
        });
    }

    fn trouble(&self) -> Option<String> {
        if !matches!(self.phase, Phase::Serving) {
            return None;
        }
        if let Some(why) = self.runs.gate().why() {
            return Some(why.to_string());
        }
        let Some(life) = &self.life else {
            return Some("its lease is lost, and it has no new one yet".to_owned());
        };
        // It is renewed every sixth of its time.
        let left = life
            .trusted_until()
            .saturating_duration_since(BootInstant::now());
        let half = (self.options.lease_ttl / 2).saturating_sub(self.options.lease_margin());
        (left < half).then(|| {
            format!(
                "its lease could not be renewed for more than half of its time; in {} s all that \
                 runs is killed",
                left.as_secs()
            )
        })
    }
}
