//! A worker with everything around it that a test looks at.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use attune_bus::memory::MemoryBus;
use attune_bus::{Bus, Outgoing, Subscriber, Subscription, Topic};
use attune_core::{ActionId, Attempt, Builtin, ExecutionId, Run, WorkerId};
use attune_messages::v1::{Completion, ExecutionCancel, ExecutionCompleted, ExecutionRequested};
use attune_messages::{decode_batch, encode};
use attune_record::{Record, Recorder, read_dir};
use attune_store::{Claim, StoreError, WorkerLease, WorkerRow, WorkerStore};
use attune_worker::{Worker, WorkerHandle, WorkerOptions};
use chrono::Utc;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) type Key = (ExecutionId, Attempt);

/// What the scripted store answers to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Mood {
    #[default]
    Fine,
    /// It cannot be reached.
    Away,
    /// It does what it is asked to do, but the answer is lost.
    Mute,
    /// It never answers.
    Stuck,
    /// It is not a store of this program.
    Foreign,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Executions that can be claimed; the value says whether they are cancelled.
    pub(crate) requested: HashMap<Key, bool>,
    pub(crate) running: HashMap<Key, WorkerId>,
    pub(crate) live: HashSet<WorkerId>,
    /// Every worker that was ever registered, in order.
    pub(crate) registered: Vec<WorkerId>,
    pub(crate) retired: Vec<WorkerId>,
    /// What each call asked for, in order.
    pub(crate) claims: Vec<Vec<Key>>,
    /// How often a lease was to be started or renewed.
    pub(crate) renewals: usize,
    pub(crate) renewing: Mood,
    pub(crate) claiming: Mood,
    /// A claim with one of these is refused whole.
    pub(crate) unclaimable: HashSet<ExecutionId>,
    /// Claims wait with their answer for as long as this is set.
    pub(crate) hold_claims: bool,
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

    async fn answer<T>(mood: Mood, act: impl FnOnce() -> T) -> Result<T, StoreError> {
        match mood {
            Mood::Fine => Ok(act()),
            Mood::Away => Err(StoreError::Unavailable("away".into())),
            Mood::Mute => {
                act();
                Err(StoreError::Unavailable("the answer was lost".into()))
            }
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
            state.renewing
        });
        let renewed = Self::answer(mood, || {
            self.change(|state| {
                if !state.registered.contains(&lease.worker) {
                    state.registered.push(lease.worker);
                    state.live.insert(lease.worker);
                }
                state.live.contains(&lease.worker)
            })
        });
        match renewed.await? {
            true => Ok(()),
            false => Err(StoreError::Conflict("the lease had expired".to_owned())),
        }
    }

    async fn retire_worker(&self, worker: WorkerId) -> Result<(), StoreError> {
        self.change(|state| {
            state.live.remove(&worker);
            state.retired.push(worker);
        });
        Ok(())
    }

    async fn claim(&self, worker: WorkerId, wanted: &[Key]) -> Result<Vec<Claim>, StoreError> {
        let mood = self.change(|state| {
            state.claims.push(wanted.to_vec());
            state.claiming
        });
        let claims = Self::answer(mood, || {
            self.change(|state| {
                if !state.live.contains(&worker) {
                    return Err(StoreError::Conflict("the lease is over".to_owned()));
                }
                if wanted.iter().any(|key| state.unclaimable.contains(&key.0)) {
                    return Err(StoreError::Refused("a row cannot be read".into()));
                }
                let mut claims = Vec::new();
                for key in wanted {
                    let ours = state.running.get(key) == Some(&worker);
                    if let Some(cancelled) = state.requested.remove(key).or(ours.then_some(false)) {
                        state.running.insert(*key, worker);
                        claims.push(Claim {
                            execution_id: key.0,
                            attempt: key.1,
                            cancel_requested: cancelled,
                        });
                    }
                }
                // The order of an answer means nothing.
                claims.reverse();
                Ok(claims)
            })
        });
        let claims = claims.await;
        self.until("claims are let go", |state| !state.hold_claims)
            .await;
        claims?
    }

    async fn workers(&self) -> Result<Vec<WorkerRow>, StoreError> {
        Ok(Vec::new())
    }
}

pub(crate) struct Rig {
    pub(crate) bus: Arc<MemoryBus>,
    pub(crate) store: Arc<TestStore>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) worker: WorkerHandle,
    pub(crate) completed: Subscriber,
    pub(crate) dir: TempDir,
    recorder: Recorder,
    /// Completions that came in one message and were not asked for yet.
    received: Vec<Completion>,
}

pub(crate) fn options(dir: &Path) -> WorkerOptions {
    WorkerOptions {
        slots: 8,
        lease_ttl: Duration::from_secs(60),
        lease_grace: Duration::from_secs(1),
        kill_grace: Duration::from_millis(200),
        drain: Duration::from_secs(20),
        work_dir: dir.join("runs"),
        ..WorkerOptions::default()
    }
}

impl Rig {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut WorkerOptions)) -> Self {
        let bus = Arc::new(MemoryBus::new());
        Self::start_on(bus.clone(), bus, change).await
    }

    /// `outer` is what the worker sees of `bus`.
    pub(crate) async fn start_on(
        outer: Arc<dyn Bus>,
        bus: Arc<MemoryBus>,
        change: impl FnOnce(&mut WorkerOptions),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(TestStore::default());
        let shutdown = CancellationToken::new();
        let recorder = Recorder::create(&dir.path().join("history"), "worker").unwrap();
        let completed = Subscription {
            topic: Topic::Completed,
            prefetch: 1000,
        };
        let completed = bus.subscribe(completed).await.unwrap();
        let mut options = options(dir.path());
        change(&mut options);
        let worker = Worker::start(
            options,
            outer,
            store.clone(),
            Some(recorder.clone()),
            shutdown.clone(),
        )
        .await
        .unwrap();
        let received = Vec::new();
        Self {
            bus,
            store,
            shutdown,
            worker,
            completed,
            dir,
            recorder,
            received,
        }
    }

    /// Lets the store hold these and sends them in one message.
    pub(crate) async fn request(&self, requests: &[ExecutionRequested]) {
        self.store.change(|state| {
            state
                .requested
                .extend(requests.iter().map(|request| (key(request), false)));
        });
        self.send(requests).await;
    }

    /// Sends these in one message, whatever the store knows.
    pub(crate) async fn send(&self, requests: &[ExecutionRequested]) {
        let id = Uuid::now_v7();
        self.publish(
            Topic::Requested("default".to_owned()),
            encode(id, Utc::now(), requests),
        )
        .await;
    }

    pub(crate) async fn cancel(&self, requests: &[&ExecutionRequested]) {
        let cancels: Vec<_> = requests
            .iter()
            .map(|request| ExecutionCancel {
                execution_id: request.execution_id,
                attempt: request.attempt,
            })
            .collect();
        self.publish(Topic::Cancel, encode(Uuid::now_v7(), Utc::now(), &cancels))
            .await;
    }

    pub(crate) async fn publish(&self, topic: Topic, body: Vec<u8>) {
        let message = Outgoing::new(topic, Uuid::now_v7(), body);
        self.bus.publish(vec![message]).await.unwrap();
    }

    /// The next completion.
    pub(crate) async fn completion(&mut self) -> Completion {
        while self.received.is_empty() {
            let next = tokio::time::timeout(PATIENCE, self.completed.next());
            let delivery = next
                .await
                .expect("no completion came")
                .expect("the bus is open");
            let items = decode_batch::<ExecutionCompleted>(&delivery.body, 1024 * 1024).unwrap();
            self.completed.settler().ack(&[delivery.tag]).await;
            self.received.extend(items.into_iter().map(|item| item.0));
        }
        self.received.remove(0)
    }

    pub(crate) async fn completions(&mut self, count: usize) -> Vec<Completion> {
        let mut completions = Vec::new();
        while completions.len() < count {
            completions.push(self.completion().await);
        }
        completions
    }

    /// Whether a completion is there that was not asked for.
    pub(crate) fn has_more(&mut self) -> bool {
        !self.received.is_empty() || self.completed.try_next().is_some()
    }

    /// Messages for the workers that are not acknowledged.
    pub(crate) fn unsettled(&self) -> usize {
        self.bus.unsettled(&Topic::Requested("default".to_owned()))
    }

    pub(crate) async fn all_is_settled(&self) {
        until("all is acknowledged", || self.unsettled() == 0).await;
    }

    /// What was recorded of runs.
    pub(crate) fn records(&self) -> Vec<Record> {
        let mut records = self.all_records();
        records.retain(|record| matches!(record, Record::Start { .. } | Record::End { .. }));
        records
    }

    pub(crate) fn all_records(&self) -> Vec<Record> {
        self.recorder.flush().unwrap();
        let records = read_dir(&self.dir.path().join("history")).unwrap();
        records.map(Result::unwrap).collect()
    }

    /// A file that a program of a test makes.
    pub(crate) fn sign(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Asks the worker to stop and waits for its end.
    pub(crate) async fn stop(&mut self) {
        self.shutdown.cancel();
        self.end().await.unwrap();
    }

    pub(crate) async fn end(&mut self) -> Result<(), attune_worker::WorkerError> {
        tokio::time::timeout(PATIENCE, &mut self.worker)
            .await
            .expect("the worker never ended")
    }
}

pub(crate) fn request(id: i64, run: Run, parameters: Value) -> ExecutionRequested {
    ExecutionRequested {
        // As an owner makes them: the partition is in the low byte.
        execution_id: ExecutionId(id << 8 | 5),
        attempt: Attempt(1),
        action_id: ActionId(7),
        action_ref: "test.run".to_owned(),
        parameters: serde_json::value::to_raw_value(&parameters).unwrap(),
        run,
        timeout_seconds: 60,
        env: BTreeMap::new(),
    }
}

pub(crate) fn noop(id: i64) -> ExecutionRequested {
    request(id, Run::Builtin(Builtin::Noop), json!({}))
}

pub(crate) fn echo(id: i64) -> ExecutionRequested {
    request(id, Run::Builtin(Builtin::Echo), json!({"id": id}))
}

pub(crate) fn sleep(id: i64, seconds: f64) -> ExecutionRequested {
    request(
        id,
        Run::Builtin(Builtin::Sleep),
        json!({"seconds": seconds}),
    )
}

/// A program that writes its pid into a file and then ignores TERM for as long as anyone waits.
pub(crate) fn stubborn(id: i64, sign: &Path) -> ExecutionRequested {
    let text = "trap '' TERM; echo $$ > \"$0.new\"; mv \"$0.new\" \"$0\"; sleep 300 & wait; wait";
    let argv = ["/bin/sh", "-c", text, sign.to_str().unwrap()].map(str::to_owned);
    request(id, Run::Program(argv.into()), json!({}))
}

pub(crate) fn key(request: &ExecutionRequested) -> Key {
    (request.execution_id, request.attempt)
}

/// The pid in a file, once it is there.
pub(crate) async fn pid_in(sign: &Path) -> String {
    until("the program runs", || sign.exists()).await;
    std::fs::read_to_string(sign).unwrap().trim().to_owned()
}

/// Waits until a process is gone, collected or not.
pub(crate) async fn is_gone(pid: &str) {
    until("the process is gone", || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| {
            stat.rsplit(')')
                .next()
                .unwrap_or_default()
                .starts_with(" Z")
        })
    })
    .await;
}

/// Waits until the condition holds.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "still not: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await; // poll
    }
}
