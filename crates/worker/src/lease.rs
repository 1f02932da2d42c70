//! The worker's lease: one life of a worker is what it does under one id.

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use attune_core::{Attempt, ExecutionId, WorkerId};
use attune_runtime::{Backoff, LogPace, Timing, error_chain};
use attune_store::{StoreError, WorkerLease, WorkerStore};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::{BootInstant, sleep_until};
use crate::guard::Guard;
use crate::options::WorkerOptions;

/// Renewals in the time of a lease: after the last one before an outage, five sixths of the lease
/// are left to sit it out.
const RENEWALS: u32 = 6;
/// Tries in the time of a lease while the store cannot be reached.
const RETRIES: u32 = 20;

/// What a worker does under one id, from registering it to losing or retiring it.
#[derive(Debug)]
pub(crate) struct Life {
    worker: WorkerId,
    /// Ends every run of this life at once.
    over: CancellationToken,
    /// Ends the renewals.
    retired: CancellationToken,
    /// Until then the store is sure to count the worker as alive, by this machine's clock.
    trusted_until: Mutex<BootInstant>,
    /// Has the lease renewed at once.
    hurry: Arc<Notify>,
}

impl Life {
    pub(crate) fn new(worker: WorkerId, trusted_until: BootInstant) -> Self {
        Self {
            worker,
            over: CancellationToken::new(),
            retired: CancellationToken::new(),
            trusted_until: Mutex::new(trusted_until),
            hurry: Arc::new(Notify::new()),
        }
    }

    pub(crate) fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Cancelled when nothing of this life may go on.
    pub(crate) fn over(&self) -> &CancellationToken {
        &self.over
    }

    /// Whether nothing of this life may begin or be reported any more. It looks at the clock
    /// too: a process, or a whole machine, that was stopped for a while must not run what it was granted before, however
    /// late the timer is that would have told it.
    pub(crate) fn is_over(&self) -> bool {
        // The clock first: whoever finds it over here has the renewal find the same.
        self.over.is_cancelled() || BootInstant::now() >= *self.trusted()
    }

    /// Trusts its lease until then, unless it is over by now; whether it is trusted. In one step: whoever has
    /// seen that it is over has dropped what it held, and it must not go on.
    fn trust(&self, until: BootInstant) -> bool {
        let mut trusted = self.trusted();
        let is_alive = BootInstant::now() < *trusted;
        if is_alive {
            *trusted = until;
        }
        is_alive
    }

    /// Until when the store is sure to count the worker as alive.
    pub(crate) fn trusted_until(&self) -> BootInstant {
        *self.trusted()
    }

    /// Ends every run of this life.
    pub(crate) fn end(&self) {
        self.over.cancel();
    }

    /// Renews the lease at once.
    pub(crate) fn hurry(&self) {
        self.hurry.notify_one();
    }

    /// Ends the renewals; the store's row is another matter.
    pub(crate) fn stop_renewing(&self) {
        self.retired.cancel();
    }

    fn trusted(&self) -> MutexGuard<'_, BootInstant> {
        self.trusted_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // Nobody is left to run anything; the keeper holds no share of a life.
        self.retired.cancel();
    }
}

/// What came of registering a life.
pub(crate) enum Registered {
    /// It lives.
    Life(Arc<Life>),
    /// The row of an earlier try, whose answer was lost, has expired meanwhile: nobody can live under this
    /// id any more.
    Over,
    /// The worker was asked to stop first.
    Stopped,
}

/// Told of a life when its row in the store says for the first time that it takes nothing, or that
/// it does again.
pub(crate) type Announce = Box<dyn Fn(WorkerId) + Send + Sync>;

/// Registers workers and keeps their leases.
pub(crate) struct Leases {
    store: Arc<dyn WorkerStore>,
    template: WorkerLease,
    margin: Duration,
    /// Kills what runs under a lease when this process cannot.
    guard: Arc<Guard>,
    /// Whether the worker takes nothing; each renewal says so.
    draining: AtomicBool,
    announce: Announce,
    /// How long renewals take.
    renewals: Timing,
}

impl Leases {
    pub(crate) fn new(
        options: &WorkerOptions,
        store: Arc<dyn WorkerStore>,
        guard: Arc<Guard>,
        announce: Announce,
    ) -> Self {
        Self {
            store,
            template: WorkerLease {
                worker: WorkerId::fresh(),
                name: options.name.clone(),
                pool: options.pool.clone(),
                slots: u32::try_from(options.slots).unwrap_or(u32::MAX),
                draining: false,
                ttl: options.lease_ttl,
                broker_user: None,
                principal: None,
            },
            margin: options.lease_margin(),
            guard,
            draining: AtomicBool::new(false),
            announce,
            renewals: Timing::default(),
        }
    }

    /// How long renewals take, to be shown.
    pub(crate) fn renewals(&self) -> Timing {
        self.renewals.clone()
    }

    /// From the next renewal on the lease says whether the worker takes nothing. Returns whether
    /// that is new.
    pub(crate) fn set_draining(&self, draining: bool) -> bool {
        self.draining.swap(draining, Ordering::SeqCst) != draining
    }

    /// Whether the worker takes nothing.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Registers a worker and renews its lease from then on. Tries for as long as the store cannot be
    /// reached. `unanswered` is called where the store may have taken a try and has not said so.
    ///
    /// # Errors
    /// When the store refuses for good.
    pub(crate) async fn register(
        self: &Arc<Self>,
        worker: WorkerId,
        shutdown: &CancellationToken,
        mut unanswered: impl FnMut(),
    ) -> Result<Registered, StoreError> {
        let since = Instant::now();
        let (mut backoff, mut log) = (Backoff::default(), LogPace::default());
        while !shutdown.is_cancelled() {
            let sent = BootInstant::now();
            let draining = self.is_draining();
            let mut renewed = Box::pin(self.renew(worker, draining));
            let renewed = tokio::select! {
                renewed = &mut renewed => renewed,
                () = tokio::time::sleep(self.template.ttl / RENEWALS) => {
                    unanswered();
                    renewed.await
                }
            };
            match renewed {
                Ok(()) => {
                    let trusted_until = self.trusted_until(sent);
                    self.guard.trust(worker, trusted_until);
                    let life = Arc::new(Life::new(worker, trusted_until));
                    tracing::info!(worker.id = %worker, "the worker is registered");
                    self.keep(&life, sent, draining);
                    return Ok(Registered::Life(life));
                }
                Err(StoreError::Conflict(_)) => return Ok(Registered::Over),
                Err(error) if error.is_transient() => {
                    unanswered();
                    if log.is_due() {
                        let waited_seconds = since.elapsed().as_secs();
                        let error = error_chain(&error);
                        tracing::warn!(waited_seconds, error, "waiting for the store");
                    }
                }
                Err(error) => return Err(error),
            }
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(backoff.next_delay()) => {}
            }
        }
        Ok(Registered::Stopped)
    }

    /// Ends the lease in the store, with what has begun under it and was not settled; gives up after a few tries,
    /// the lease runs out by itself.
    pub(crate) async fn retire(&self, life: &Life, begun: Vec<(ExecutionId, Attempt)>) {
        const TRIES: usize = 3;
        const PATIENCE: Duration = Duration::from_secs(2);
        life.stop_renewing();
        let (worker, begun) = (life.worker(), Arc::from(begun));
        let mut backoff = Backoff::default();
        for _ in 0..TRIES {
            let (store, begun) = (Arc::clone(&self.store), Arc::clone(&begun));
            let call = tokio::spawn(async move { store.retire_worker(worker, Some(&begun)).await });
            match answer(call, Instant::now() + PATIENCE).await {
                Ok(()) => {
                    tracing::info!(worker.id = %worker, "the worker is retired");
                    return;
                }
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(worker.id = %worker, error, "the lease could not be ended");
                }
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    fn trusted_until(&self, sent: BootInstant) -> BootInstant {
        sent + self.template.ttl.saturating_sub(self.margin)
    }

    /// One renewal.
    async fn renew(&self, worker: WorkerId, draining: bool) -> Result<(), StoreError> {
        let store = Arc::clone(&self.store);
        let lease = WorkerLease {
            worker,
            draining,
            ..self.template.clone()
        };
        let began = Instant::now();
        let call = tokio::spawn(async move { store.renew_worker(&lease).await });
        let renewed = answer(call, began + self.template.ttl).await;
        self.renewals.record(began.elapsed());
        renewed
    }

    /// Starts the task that renews every sixth of the ttl and ends the life when that fails for
    /// too long. It holds no share of the life, so that dropping the last one ends it.
    fn keep(self: &Arc<Self>, life: &Arc<Life>, sent: BootInstant, draining: bool) {
        let keeper = Keeper {
            leases: Arc::clone(self),
            life: Arc::downgrade(life),
            worker: life.worker,
            over: life.over.clone(),
            retired: life.retired.clone(),
            hurry: Arc::clone(&life.hurry),
            draining,
        };
        tokio::spawn(keeper.run(sent));
    }
}

/// Renews one lease.
struct Keeper {
    leases: Arc<Leases>,
    life: std::sync::Weak<Life>,
    worker: WorkerId,
    over: CancellationToken,
    retired: CancellationToken,
    hurry: Arc<Notify>,
    /// What the lease says of it.
    draining: bool,
}

impl Keeper {
    async fn run(mut self, registered: BootInstant) {
        let ttl = self.leases.template.ttl;
        let mut trusted_until = self.leases.trusted_until(registered);
        let mut due = registered + ttl / RENEWALS;
        loop {
            tokio::select! {
                () = self.retired.cancelled() => return,
                () = self.hurry.notified() => {}
                () = sleep_until(due.min(trusted_until)) => {}
            }
            if BootInstant::now() >= trusted_until {
                return self.lost("it could not be renewed in time");
            }
            let sent = BootInstant::now();
            let draining = self.leases.is_draining();
            // The call itself goes on when it is left alone here.
            let renewed = tokio::select! {
                () = self.retired.cancelled() => return,
                () = sleep_until(trusted_until) => continue,
                renewed = self.leases.renew(self.worker, draining) => renewed,
            };
            match renewed {
                Ok(()) => {
                    trusted_until = self.leases.trusted_until(sent);
                    self.leases.guard.trust(self.worker, trusted_until);
                    due = sent + ttl / RENEWALS;
                    let Some(life) = self.life.upgrade() else {
                        // Nothing runs under it.
                        return self.leases.guard.lost(self.worker);
                    };
                    // Told too late, the guard has killed what runs, whatever the store says.
                    if !life.trust(trusted_until) {
                        return self.lost("its renewal came too late");
                    }
                    if self.draining != draining {
                        self.draining = draining;
                        (self.leases.announce)(self.worker);
                    }
                }
                Err(StoreError::Conflict(_)) => return self.lost("the store has ended it"),
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(worker.id = %self.worker, error, "the lease was not renewed");
                    due = BootInstant::now() + ttl / RETRIES;
                }
            }
        }
    }

    fn lost(&self, why: &str) {
        tracing::error!(
            worker.id = %self.worker,
            why,
            "the lease is lost; what the worker runs is killed"
        );
        self.over.cancel();
        self.leases.guard.lost(self.worker);
    }
}

/// The answer of a store call that runs in a task of its own. A database call is never dropped
/// half-way: one that takes too long is left alone and counts as one whose outcome is unknown,
/// and so does one that panicked. Every call of a worker can be repeated.
pub(crate) async fn answer<T>(
    call: JoinHandle<Result<T, StoreError>>,
    until: Instant,
) -> Result<T, StoreError> {
    match tokio::time::timeout_at(until, call).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(fault)) => Err(StoreError::Unavailable(fault.into())),
        Err(late) => Err(StoreError::Unavailable(late.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What managed databases take to fail over.
    #[test]
    fn forty_seconds_without_the_store_are_within_the_usual_lease() {
        let options = WorkerOptions::default();
        let ttl = options.lease_ttl;
        // The outage begins right before a renewal, and ends right after a try.
        let longest = ttl / RENEWALS + Duration::from_secs(40) + ttl / RETRIES;
        assert!(longest < ttl - options.lease_margin(), "{longest:?}");
    }
}
