//! What a load costs: looked at beside it, from its first request to its last end.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use attune_bench::{Costs, Meter, Usage, doubling};
use attune_record::{Record, read_dir};
use attune_store::Store;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, sleep};

use super::system::{System, listener_in};

/// How often the processes are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often what comes late is looked for.
const LATE: Duration = Duration::from_millis(100);
/// How long the snapshots and the completions that were sent twice may come late.
const SETTLE: Duration = Duration::from_secs(30);

/// Looks at the processes until the load has ended.
pub(super) struct Watch {
    wal: Option<u64>,
    transactions: Option<u64>,
    published: Option<u64>,
    /// Dropped, it ends the task.
    end: oneshot::Sender<()>,
    looking: JoinHandle<anyhow::Result<Usage>>,
}

impl Watch {
    /// Begins now.
    pub(super) async fn begin(system: &System) -> anyhow::Result<Self> {
        let groups = system.groups();
        let (wal, published) = (system.wal_position().await, system.published().await);
        let transactions = system.transactions().await;
        let begun = tokio::task::spawn_blocking(move || Meter::begin(groups)).await?;
        let (end, ended) = oneshot::channel();
        Ok(Self {
            wal,
            transactions,
            published,
            end,
            looking: tokio::spawn(look(begun, ended)),
        })
    }

    /// Ends now: the load has. What comes a moment later is waited for.
    pub(super) async fn end(self, system: &System, store: &dyn Store) -> anyhow::Result<Costs> {
        let (wal, published) = (system.wal_position().await, system.published().await);
        drop(self.end);
        let usage = self.looking.await??;
        let sent_twice = system.sent_twice();
        Ok(Costs {
            usage,
            wal_bytes: difference(self.wal, wal),
            // Of sessions that are open they come late: those of the end are counted when all have ended.
            transactions: self.transactions,
            messages: difference(self.published, published),
            slots_held: slots_held(store).await?,
            sent_twice,
            passed_on_twice: passed_on_twice(&system.history(), sent_twice).await?,
        })
    }
}

/// What came between a count and a later one, if both are known.
pub(super) fn difference(begin: Option<u64>, end: Option<u64>) -> Option<u64> {
    Some(end?.saturating_sub(begin?))
}

async fn look(mut meter: Meter, mut ended: oneshot::Receiver<()>) -> anyhow::Result<Usage> {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let last = tokio::select! {
            biased;
            _ = &mut ended => true,
            _ = ticks.tick() => false,
        };
        meter = tokio::task::spawn_blocking(move || {
            meter.look();
            meter
        })
        .await?;
        if last {
            return Ok(meter.usage().clone());
        }
    }
}

/// Slots that queues say they hold, when they no longer say so or it is too late.
async fn slots_held(store: &dyn Store) -> anyhow::Result<u64> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let queues = store.list_queue_stats(None, u32::MAX).await?.rows;
        let held = queues.iter().map(|row| row.stats.active_count).sum();
        if held == 0 || Instant::now() >= deadline {
            return Ok(held);
        }
        sleep(LATE).await;
    }
}

/// How many completions the completion listener has passed on once more, when these are all that
/// were sent twice or it is too late.
async fn passed_on_twice(history: &Path, sent_twice: u64) -> anyhow::Result<u64> {
    if sent_twice == 0 {
        return Ok(0);
    }
    let deadline = Instant::now() + SETTLE;
    loop {
        let folder = listener_in(history);
        let repeated = tokio::task::spawn_blocking(move || -> anyhow::Result<u64> {
            // The last line may be half written; what is missing of it is seen the next time.
            let records = read_dir(&folder)?.filter_map(Result::ok);
            let passed_on = records.filter_map(|record| match record {
                Record::Forwarded {
                    execution_id,
                    attempt,
                    ..
                } => Some((execution_id, attempt)),
                _ => None,
            });
            Ok(doubling::repeated(passed_on))
        });
        let repeated = repeated
            .await?
            .context("the completion listener's records")?;
        if repeated >= sent_twice || Instant::now() >= deadline {
            return Ok(repeated);
        }
        sleep(LATE).await;
    }
}
