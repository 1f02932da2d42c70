//! A worker that can start no program takes nothing, says so, and goes on when it can again; and
//! what else keeps a worker from its work is told from here.

use std::time::Duration;

use attune_runtime::Backoff;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Phase, Service};
use crate::clock::BootInstant;
use crate::outbox::Overdue;

/// The longest pause between two looks whether programs can be started.
const SLOWEST: Duration = Duration::from_secs(10);
/// Being well for so long makes the next pause short again.
const STABLE: Duration = Duration::from_secs(10);
/// With no room for what ends for so long, the worker takes nothing more.
const FULL_PATIENCE: Duration = Duration::from_secs(5);
/// Not settled for so long, a completion is worth a word to people.
const UNSETTLED: Duration = Duration::from_secs(15);

/// How far the worker is with starting again.
pub(crate) struct Stuck {
    /// Since when nothing can be started; none while all is well.
    since: Option<Instant>,
    /// When it was over the last time.
    over: Option<Instant>,
    backoff: Backoff,
    /// Looks until programs can be started.
    pub(super) looking: Option<JoinHandle<Backoff>>,
}

impl Default for Stuck {
    fn default() -> Self {
        Self {
            since: None,
            over: None,
            backoff: Backoff::new(Duration::from_millis(250), SLOWEST),
            looking: None,
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
    /// Gives back what waits while the worker takes nothing, and has its lease say whether it does,
    /// so that owners grant accordingly.
    pub(super) fn take_or_leave(&mut self) {
        let has_room = self.outbox.has_room();
        let full_since = self.pending.full_since;
        self.pending.full_since = (!has_room).then(|| full_since.unwrap_or_else(Instant::now));
        let why = self.why_nothing();
        if let Some(why) = why
            && self.entries.waiting() > 0
        {
            self.entries.give_back_all(why);
            self.pending.has_changed = true;
        }
        if self.leases.set_draining(why.is_some())
            && let Some(life) = &self.life
        {
            life.hurry();
        }
    }

    /// Why nothing is taken, if that is so.
    fn why_nothing(&self) -> Option<&'static str> {
        if !matches!(self.phase, Phase::Serving) {
            return Some("its worker stops");
        }
        if self.stuck.is_stuck() {
            return Some("its worker can start nothing");
        }
        let full_since = self.pending.full_since?;
        let for_long = full_since.elapsed() > FULL_PATIENCE;
        for_long.then_some("its worker has too much that is not settled")
    }

    /// A run could not be started, by no fault of its own.
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

    /// Looks at what time alone changes.
    pub(super) fn look(&mut self) {
        self.pending.look_at = Some(Instant::now() + self.look_interval());
        let since = self.stuck.since;
        if since.is_some_and(|since| since.elapsed() > self.options.start_patience) {
            self.wait_no_longer();
        }
        self.tell_overdue();
    }

    /// Tells again what was confirmed long ago and is not written down.
    fn tell_overdue(&mut self) {
        let Overdue { count, longest } = self.outbox.send_overdue();
        self.counters.retold.add(count);
        // An owner that has just come has had no time for them.
        if longest > UNSETTLED && self.pending.retold_log.is_due() {
            tracing::warn!(
                overdue_count = count,
                longest_seconds = longest.as_secs(),
                "completions were confirmed, but their owners have not written them down; they \
                 are told again (does a completion listener run?)"
            );
        }
    }

    /// Lets others run what has waited here for its start for too long: each is given back by
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

    /// How often time is looked at.
    pub(super) fn look_interval(&self) -> Duration {
        let interval = (self.options.lease_ttl / 12).min(self.options.retell_after / 4);
        interval.clamp(Duration::from_millis(20), Duration::from_secs(1))
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
        let why = self.why_nothing().map(str::to_owned);
        why.or_else(|| self.runs.runner().keyless().trouble())
    }
}
