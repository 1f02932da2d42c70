//! A worker that can start no program takes nothing, says so, and goes on when it can again; and
//! what else keeps a worker from its work is told from here.

use std::sync::Arc;
use std::time::Duration;

use attune_bus::{
    Outgoing, Patience, PublishError, Shelf, Subscriber, Topic, publish_until_confirmed,
};
use attune_core::RequestId;
use attune_core::input::MAX_TEXT_BYTES;
use attune_messages::encode;
use attune_messages::v1::ForceRelease;
use attune_runtime::{Backoff, LogPace};
use chrono::Utc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Phase, Service};
use crate::clock::BootInstant;
use crate::error::WorkerError;
use crate::runs::Running;
use crate::worker::{of_pool, subscribe};

/// The longest pause between two looks whether programs can be started.
const SLOWEST: Duration = Duration::from_secs(10);
/// Being well for so long makes the next pause short again.
const STABLE: Duration = Duration::from_secs(10);
/// What owners are told of a slot that is given back.
const GIVEN_BACK: &str = "it was never begun: its worker could start nothing for too long";

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
        let since = self.stuck.since;
        if since.is_some_and(|since| since.elapsed() > self.options.start_patience) {
            self.wait_no_longer();
        }
        // What failed waits here and is tried again, unless it has gone to others.
        if self.pending.claim.is_none() && !self.inbox.is_waiting() {
            self.pending.claiming.rested(self.options.claim_patience);
        }
        self.tell_trouble();
    }

    /// Lets others run what has waited here for its start for too long: each slot is given back by
    /// itself, so that its owner learns that nothing was begun. A lease that ends says less.
    fn wait_no_longer(&mut self) {
        let waiting_count = self.runs.gate().waiting();
        let Some(life) = self.life.as_ref().filter(|_| waiting_count > 0) else {
            return;
        };
        tracing::error!(
            worker.id = %life.worker(),
            waiting_count,
            "nothing could be started for long; what waits is given back, so that others run it"
        );
        self.runs.gate().give_back();
    }

    /// Tells the owner of an attempt that it holds its slot for nothing, until it is certain to
    /// hear of it, or the lease is over and says the same.
    pub(super) fn give_back(&self, run: &Running) {
        let (execution_id, attempt) = run.key;
        let mut who = self.options.name.replace('\0', "");
        who.truncate(who.floor_char_boundary(MAX_TEXT_BYTES));
        let command = ForceRelease {
            request_id: RequestId::fresh(),
            execution_id,
            attempt,
            who,
            reason: GIVEN_BACK.to_owned(),
            worker: Some(run.life.worker()),
            never_begun: true,
        };
        let message_id = Uuid::now_v7();
        let body = encode(message_id, Utc::now(), &[command]);
        let topic = Topic::Commands(execution_id.partition());
        let message = Outgoing::new(topic, message_id, body);
        let (bus, over) = (Arc::clone(&self.bus), run.life.over().clone());
        tokio::spawn(async move {
            let (mut backoff, mut log) = (Backoff::default(), LogPace::default());
            let pause = |error: &PublishError, _: &[Outgoing]| {
                if log.is_due() {
                    tracing::warn!(execution.id = %execution_id, %error, "a slot cannot be given back yet");
                }
                Some(backoff.next_delay())
            };
            let patience = Patience::UntilStopped;
            publish_until_confirmed(&*bus, vec![message], patience, &over, pause).await;
        });
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
        if left < half {
            return Some(format!(
                "its lease could not be renewed for more than half of its time; in {} s all that \
                 runs is killed",
                left.as_secs()
            ));
        }
        let failing = self.pending.claiming.lasting(self.options.claim_patience);
        failing.map(|why| format!("nothing can be claimed: {why}"))
    }
}
