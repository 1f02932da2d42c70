//! Makes the store calls that an owner asks for.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{Epoch, OwnerId, PartitionId, PolicySet};
use attune_executor::owner::{Call, Failure, Looked, Reply};
use attune_executor::queue::Millis;
use attune_executor::stored::Sets;
use attune_runtime::error_chain;
use attune_secrets::Keyring;
use attune_store::{CommitError, PartitionStore, StoreError, StoredPolicies};
use chrono::Utc;
use tokio::time::Instant;
use tracing::warn;

use crate::convert::{self, duration};
use crate::driver::boot_now;
use crate::figures::{ExecutorFigures, LeaseTime};
use crate::queue_figures::Names;

/// How often it is tried to write down what was taken.
const NOTE_TRIES: u32 = 12;
/// The pause before each further try.
const NOTE_PAUSE: Duration = Duration::from_secs(5);

/// The store, and who asks.
#[derive(Clone)]
pub(crate) struct Calls {
    pub(crate) store: Arc<dyn PartitionStore>,
    pub(crate) owner: OwnerId,
    /// The owner's name for people.
    pub(crate) name: Arc<str>,
    /// How long a lease holds without renewal, in milliseconds.
    pub(crate) ttl: Millis,
    pub(crate) measured: Measured,
    /// What is kept of messages is sealed with these.
    pub(crate) secrets: Keyring,
}

/// Where it is noted what calls tell of.
#[derive(Debug, Clone)]
pub(crate) struct Measured {
    pub(crate) figures: Arc<ExecutorFigures>,
    pub(crate) leases: Arc<LeaseTime>,
    pub(crate) names: Arc<Names>,
}

impl Measured {
    /// Notes the answer to a call that was made then.
    fn note(&self, reply: &Reply, sent: Millis) {
        match reply {
            Reply::Renewed(held) if !held.is_empty() => self.leases.renewed(sent),
            Reply::Acquired(taken) if !taken.is_empty() => self.leases.taken(sent),
            Reply::Queues { actions, .. } | Reply::Known { actions, .. } => {
                self.names.learn(actions);
            }
            _ => {}
        }
    }
}

impl Calls {
    /// Makes a call. It is never cut short: whoever waits for the answer may go away.
    pub(crate) async fn make(&self, call: Call) -> Reply {
        let (sent, began) = (boot_now(), Instant::now());
        let items = match &call {
            Call::Commit(commit) => Some(commit.executions().count()),
            _ => None,
        };
        match self.try_to(call).await {
            Ok(reply) => {
                self.measured.note(&reply, sent);
                if let Some(items) = items {
                    self.measured.figures.commit.record(began.elapsed());
                    self.measured.figures.round_items.record(items);
                }
                reply
            }
            Err(error) => Reply::Failed(Failure {
                refused: error.wrote_nothing(),
                words: error_chain(&error),
            }),
        }
    }

    /// Has it written down which partitions were taken, beside everything else: nothing waits for that.
    fn note_takeover(&self, taken: &[(PartitionId, Epoch)]) {
        if taken.is_empty() {
            return;
        }
        let (calls, taken) = (self.clone(), taken.to_vec());
        tokio::spawn(async move {
            for tried in 1.. {
                let noted = calls
                    .store
                    .note_takeover(calls.owner, &calls.name, &taken)
                    .await;
                match noted {
                    Ok(()) => return,
                    Err(_) if tried < NOTE_TRIES => tokio::time::sleep(NOTE_PAUSE).await,
                    Err(error) => {
                        warn!(
                            partitions = ?taken,
                            error.message = error_chain(&error),
                            "partitions were taken, and that could not be written into the audit log"
                        );
                        return;
                    }
                }
            }
        });
    }

    async fn try_to(&self, call: Call) -> Result<Reply, StoreError> {
        let (store, owner, ttl) = (&self.store, self.owner, duration(self.ttl));
        Ok(match call {
            Call::Renew(held) => Reply::Renewed(store.renew(owner, &held, ttl).await?),
            Call::Announce { ttl, cut_off } => {
                let presence = duration(ttl);
                let announced = store.renew_executor(owner, &self.name, presence, cut_off);
                announced.await?;
                Reply::Announced
            }
            Call::Look => {
                let store_now = store.now().await?.timestamp_millis();
                let own_now = Utc::now().timestamp_millis();
                let executors = store.executors().await?;
                let leases = store.leases().await?;
                Reply::Looked(Looked {
                    store_now,
                    own_now,
                    executors: executors.into_iter().map(convert::executor).collect(),
                    leases: leases.into_iter().map(convert::lease).collect(),
                })
            }
            Call::Acquire(wanted) => {
                let taken = store.acquire(owner, &self.name, &wanted, ttl).await?;
                self.note_takeover(&taken);
                Reply::Acquired(taken)
            }
            Call::TakeOver(observed) => {
                let observed: Vec<_> = observed.into_iter().map(convert::observed).collect();
                let taken = store.acquire_observed(owner, &self.name, &observed, ttl);
                let taken = taken.await?;
                self.note_takeover(&taken);
                Reply::Acquired(taken)
            }
            Call::GiveUp(held, to) => {
                store.give_up(owner, &held, to).await?;
                Reply::GaveUp
            }
            Call::Retire => {
                store.retire_executor(owner).await?;
                Reply::Retired
            }
            Call::LoadQueues { partition, around } => {
                // The sets are read last: what was told to others meanwhile is in them.
                let ids = [partition];
                let (actions, totals, gap) = tokio::try_join!(
                    store.load_actions(&ids),
                    store.load_totals(&ids),
                    store.request_gap(around)
                )?;
                let pauses = store.pauses(None).await?.unwrap_or_default().pauses();
                let policies = store.policies(None).await?.unwrap_or_default();
                Reply::Queues {
                    actions,
                    totals,
                    sets: Sets {
                        pauses: Arc::new(pauses),
                        policies: Arc::new(policy_set(&policies)),
                    },
                    gap,
                }
            }
            Call::LoadMeters {
                partition,
                after,
                limit,
            } => {
                let after = after.map(convert::meter_place);
                let page = store.load_meters(partition, after, limit).await?;
                Reply::Meters {
                    rows: page.rows.into_iter().map(convert::stored_meter).collect(),
                    next: page.next.map(convert::counted_to),
                }
            }
            Call::LoadPauses { newer_than } => {
                let newer = store.pauses(Some(newer_than)).await?;
                Reply::Pauses(newer.map(|set| Arc::new(set.pauses())))
            }
            Call::LoadPolicies { newer_than } => {
                let newer = store.policies(Some(newer_than)).await?;
                Reply::Policies(newer.map(|stored| Arc::new(policy_set(&stored))))
            }
            Call::LoadRows {
                partition,
                after,
                limit,
            } => {
                let after = after.map(convert::active_place);
                let page = store.load_partition(partition, after, limit).await?;
                Reply::Rows {
                    rows: page.rows.into_iter().map(convert::execution).collect(),
                    next: page.next.map(convert::loaded_to),
                }
            }
            Call::ScanRows {
                partitions,
                after,
                limit,
            } => {
                let slice = store.scan_active(&partitions, after, limit).await?;
                Reply::Slice {
                    rows: slice.rows.into_iter().map(convert::execution).collect(),
                    last: slice.last,
                }
            }
            Call::LookUp { requests, actions } => {
                let known = store.look_up(&requests, &actions).await?;
                Reply::Known {
                    requests: known.requests.into_iter().map(convert::known).collect(),
                    actions: known.actions,
                }
            }
            Call::Commit(commit) => {
                let batch = convert::batch(&commit.batch, &self.secrets);
                // The owner takes what it decided back when it is stored.
                drop(commit);
                match store.commit(&batch).await {
                    Ok(committed) => {
                        Reply::Committed(committed.granted.into_iter().map(convert::body).collect())
                    }
                    Err(CommitError::Fenced(lost)) => Reply::Fenced(lost),
                    Err(CommitError::Store(error)) => return Err(error),
                }
            }
            Call::LoadSlots(ids) => {
                let slots = store.load_slots(&ids).await?;
                Reply::Slots(slots.into_iter().map(convert::slot).collect())
            }
            Call::LoadWords(ids) => {
                let words = store.load_words(&ids).await?;
                Reply::Words(words.into_iter().map(convert::words).collect())
            }
            Call::LoadOperationWords(ids) => {
                let labels = store.load_labels(&ids).await?;
                Reply::Words(labels.into_iter().map(convert::labels).collect())
            }
            Call::LoadBodies(ids) => {
                let bodies = store.load_bodies(&ids).await?;
                Reply::Bodies(bodies.into_iter().map(convert::body).collect())
            }
            Call::LoadOperations(partitions) => {
                Reply::Operations(store.open_operations(&partitions).await?)
            }
            Call::WorkerEnds => {
                let ends = store.worker_ends().await?;
                Reply::WorkerEnds(ends.into_iter().map(convert::worker_end).collect())
            }
            Call::EndWorkers(observed) => Reply::EndedWorkers(store.end_workers(&observed).await?),
        })
    }
}

/// What owners decide by. A document of a later release, or one that somebody's hand wrote, holds up nothing
/// else: nothing of it is in force, and that is told.
fn policy_set(stored: &StoredPolicies) -> PolicySet {
    let (set, unreadable) = stored.set();
    for (target, problem) in unreadable {
        warn!(
            policy.target = %target,
            error.message = %problem,
            "a policy document cannot be read, and nothing of it is in force; apply it again"
        );
    }
    set
}
