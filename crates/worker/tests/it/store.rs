//! A store of workers with moods.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use async_trait::async_trait;
use attune_core::{Attempt, ExecutionId, WorkerId};
use attune_store::{StoreError, WorkerLease, WorkerRow, WorkerStore};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::rig::PATIENCE;

/// What the scripted store answers to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mood {
    #[default]
    Fine,
    /// It cannot be reached.
    Away,
    /// It does what it is asked to, and says that it cannot be reached.
    Unheard,
    /// It never answers.
    Stuck,
    /// It is not a store of this program.
    Foreign,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) live: HashSet<WorkerId>,
    /// Every worker that was ever registered, in order.
    pub(crate) registered: Vec<WorkerId>,
    pub(crate) retired: Vec<WorkerId>,
    /// What the one that retired last said had begun.
    pub(crate) begun: Option<Vec<(ExecutionId, Attempt)>>,
    /// What the rows say.
    pub(crate) draining: HashMap<WorkerId, bool>,
    /// How often a lease was to be started or renewed.
    pub(crate) renewals: usize,
    /// The same of each worker.
    pub(crate) asked: HashMap<WorkerId, usize>,
    pub(crate) renewing: Mood,
}

/// A store that keeps the rules of the port and has moods.
#[derive(Debug, Default)]
pub(crate) struct TestStore {
    state: Mutex<State>,
    changed: Notify,
}

impl TestStore {
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.state.lock().unwrap());
        self.changed.notify_waiters();
        result
    }

    /// Waits until the condition holds.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if condition(&self.state.lock().unwrap()) {
                return;
            }
            timeout_at(deadline, changed)
                .await
                .unwrap_or_else(|_| panic!("still not: {what}"));
        }
    }

    /// Waits until the row of the worker that was registered last says so.
    pub(crate) async fn until_draining(&self, draining: bool) {
        let says_so = |state: &State| {
            let last = state.registered.last();
            last.and_then(|worker| state.draining.get(worker)) == Some(&draining)
        };
        self.until("its row says whether it drains", says_so).await;
    }

    async fn answer<T>(mood: Mood, act: impl FnOnce() -> T) -> Result<T, StoreError> {
        match mood {
            Mood::Fine => Ok(act()),
            Mood::Unheard => {
                act();
                Err(StoreError::Unavailable("unheard".into()))
            }
            Mood::Away => Err(StoreError::Unavailable("away".into())),
            Mood::Foreign => Err(StoreError::Schema("version 0".to_owned())),
            Mood::Stuck => std::future::pending().await,
        }
    }
}

#[async_trait]
impl WorkerStore for TestStore {
    async fn renew_worker(&self, lease: &WorkerLease) -> Result<(), StoreError> {
        let mood = self.change(|state| {
            state.renewals += 1;
            *state.asked.entry(lease.worker).or_default() += 1;
            state.renewing
        });
        let renewed = Self::answer(mood, || {
            self.change(|state| {
                if !state.registered.contains(&lease.worker) {
                    state.registered.push(lease.worker);
                    state.live.insert(lease.worker);
                }
                state.draining.insert(lease.worker, lease.draining);
                state.live.contains(&lease.worker)
            })
        });
        match renewed.await? {
            true => Ok(()),
            false => Err(StoreError::Conflict("the lease had expired".to_owned())),
        }
    }

    async fn retire_worker(
        &self,
        worker: WorkerId,
        begun: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<(), StoreError> {
        self.change(|state| {
            state.live.remove(&worker);
            state.retired.push(worker);
            state.begun = begun.map(<[_]>::to_vec);
        });
        Ok(())
    }

    async fn worker_over(
        &self,
        worker: WorkerId,
        _: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<bool, StoreError> {
        Ok(self.change(|state| {
            state.live.remove(&worker);
            state.registered.contains(&worker)
        }))
    }

    async fn principal_of(&self, _: WorkerId) -> Result<Option<Option<String>>, StoreError> {
        Ok(None)
    }

    async fn workers(&self) -> Result<Vec<WorkerRow>, StoreError> {
        Ok(Vec::new())
    }
}
