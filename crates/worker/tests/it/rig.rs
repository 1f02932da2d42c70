//! A worker with everything around it that a test looks at.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use attune_bus::memory::MemoryBus;
use attune_bus::{Bus, Delivery, Outgoing, Subscriber, Subscription, Topic};
use attune_core::{ActionId, Attempt, Builtin, ExecutionId, Resources, Run, WorkerId};
use attune_dispatch::Key;
use attune_messages::decode_batch;
use attune_messages::v1::{Completion, ExecutionCompleted};
use attune_messages::v2::{Grant, GrantKey, Section, WorkerReport};
use attune_record::{Record, Recorder, read_dir};
use attune_worker::{Worker, WorkerError, WorkerHandle, WorkerOptions};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::owner::{Owner, reports_in, returned};
use crate::store::TestStore;

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Rig {
    pub(crate) bus: Arc<MemoryBus>,
    pub(crate) store: Arc<TestStore>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) worker: WorkerHandle,
    /// What comes the quick way.
    pub(crate) completed: Subscriber,
    /// What comes the lasting way.
    pub(crate) lasting: Subscriber,
    pub(crate) owner: Owner,
    /// Whether the owner settles what it hears of.
    pub(crate) settles: bool,
    pub(crate) dir: TempDir,
    recorder: Recorder,
    /// Completions that were not asked for yet.
    received: Vec<Completion>,
    /// Reports that were not asked for yet.
    reported: Vec<WorkerReport>,
}

/// From where something was heard.
#[derive(Clone, Copy)]
enum Source {
    Completed,
    Lasting,
    Reports,
}

async fn subscribed(bus: &MemoryBus, topic: Topic) -> Subscriber {
    let prefetch = 1000;
    let subscription = Subscription { topic, prefetch };
    bus.subscribe(subscription).await.unwrap()
}

/// The completions in a message.
pub(crate) fn completions_in(delivery: &Delivery) -> Vec<Completion> {
    let items = decode_batch::<ExecutionCompleted>(&delivery.body, 1024 * 1024).unwrap();
    items.into_iter().map(|item| item.0).collect()
}

pub(crate) fn options(dir: &Path) -> WorkerOptions {
    WorkerOptions {
        slots: 8,
        lease_ttl: Duration::from_secs(60),
        lease_grace: Duration::from_secs(1),
        kill_grace: Duration::from_millis(200),
        drain: Duration::from_secs(20),
        work_dir: dir.join("runs"),
        // Nothing is told again unless a test is about that.
        retell_after: PATIENCE,
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
        let completed = subscribed(&bus, Topic::CompletedKept).await;
        let lasting = subscribed(&bus, Topic::Completed).await;
        let owner = Owner::new(&bus).await;
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
        Self {
            bus,
            store,
            shutdown,
            worker,
            completed,
            lasting,
            owner,
            settles: true,
            dir,
            recorder,
            received: Vec::new(),
            reported: Vec::new(),
        }
    }

    /// The life that the worker is.
    pub(crate) async fn life(&mut self) -> WorkerId {
        self.owner.life().await
    }

    /// Grants these in one section, and says which life they were granted to.
    pub(crate) async fn grant(&mut self, grants: &[Grant]) -> WorkerId {
        let life = self.life().await;
        let section = self.owner.grant(life, grants);
        self.owner.send(&section).await.unwrap();
        life
    }

    pub(crate) async fn cancel(&mut self, grants: &[&Grant]) {
        let life = self.life().await;
        let mut section = self.owner.next(life, grants[0].execution_id.partition());
        section.cancel = grants.iter().map(|grant| grant.key().into()).collect();
        self.owner.send(&section).await.unwrap();
    }

    /// Says again all that its owner knows of the life, and nothing else.
    pub(crate) async fn sync(&mut self, grant: &Grant) {
        let life = self.life().await;
        let partition = grant.execution_id.partition();
        self.owner.has_lost(life, partition);
        let section = self.owner.next(life, partition);
        self.owner.send(&section).await.unwrap();
    }

    pub(crate) async fn send(&self, section: &Section) {
        self.owner.send(section).await.unwrap();
    }

    pub(crate) async fn publish(&self, topic: Topic, body: Vec<u8>) {
        let message = Outgoing::new(topic, Uuid::now_v7(), body);
        self.bus.publish(vec![message]).await.unwrap();
    }

    /// Waits until the worker has taken everything that it was sent, and done what follows.
    pub(crate) async fn all_is_taken(&mut self) {
        let link = Topic::link("default", self.life().await);
        until("all is acknowledged", || self.bus.unsettled(&link) == 0).await;
    }

    /// Hears one thing that the worker says.
    async fn hear(&mut self, what: &str, deadline: Instant) {
        let heard = async {
            tokio::select! {
                delivery = self.completed.next() => (delivery, Source::Completed),
                delivery = self.lasting.next() => (delivery, Source::Lasting),
                delivery = self.owner.reports.next() => (delivery, Source::Reports),
            }
        };
        let heard = timeout_at(deadline, heard).await;
        let (delivery, source) = heard.unwrap_or_else(|_| panic!("still not: {what}"));
        self.heard(delivery.expect("the bus is open"), source).await;
    }

    async fn heard(&mut self, delivery: Delivery, source: Source) {
        let subscriber = match source {
            Source::Completed => &self.completed,
            Source::Lasting => &self.lasting,
            Source::Reports => &self.owner.reports,
        };
        subscriber.settler().ack(&[delivery.tag]).await;
        let mut settled = Vec::new();
        match source {
            Source::Completed | Source::Lasting => {
                for item in completions_in(&delivery) {
                    let worker = item.worker.expect("a completion names its worker");
                    settled.push((worker, (item.execution_id, item.attempt)));
                    self.received.push(item);
                }
            }
            Source::Reports => {
                for report in reports_in(&delivery.body) {
                    let keys = returned(&report);
                    settled.extend(keys.into_iter().map(|key| (report.worker, key)));
                    self.reported.push(report);
                }
            }
        }
        if self.settles {
            for (worker, key) in settled {
                self.owner.settle(worker, &[key]).await;
            }
        }
    }

    /// The next completion.
    pub(crate) async fn completion(&mut self) -> Completion {
        let deadline = Instant::now() + PATIENCE;
        while self.received.is_empty() {
            self.hear("a completion comes", deadline).await;
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

    /// The next report for which this holds; those before it are forgotten.
    pub(crate) async fn report(
        &mut self,
        what: &str,
        condition: impl Fn(&WorkerReport) -> bool,
    ) -> WorkerReport {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(place) = self.reported.iter().position(&condition) {
                return self.reported.drain(..=place).next_back().unwrap();
            }
            self.hear(what, deadline).await;
        }
    }

    /// Waits until exactly these are given back.
    pub(crate) async fn gives_back(&mut self, grants: &[&Grant]) -> WorkerReport {
        let mut keys: Vec<Key> = grants.iter().map(|grant| grant.key()).collect();
        keys.sort_unstable();
        self.report("it is given back", |report| returned(report) == keys)
            .await
    }

    /// Whether a completion is there that was not asked for.
    pub(crate) fn has_more(&mut self) -> bool {
        !self.received.is_empty()
            || self.completed.try_next().is_some()
            || self.lasting.try_next().is_some()
    }

    /// Forgets completions that were not asked for.
    pub(crate) fn forget_completions(&mut self) {
        self.received.clear();
        while self.completed.try_next().is_some() {}
        while self.lasting.try_next().is_some() {}
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

    /// Waits for its end, while its owner goes on hearing it.
    pub(crate) async fn end(&mut self) -> Result<(), WorkerError> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (delivery, source) = tokio::select! {
                ended = &mut self.worker => return ended,
                Some(delivery) = self.completed.next() => (delivery, Source::Completed),
                Some(delivery) = self.lasting.next() => (delivery, Source::Lasting),
                Some(delivery) = self.owner.reports.next() => (delivery, Source::Reports),
                () = tokio::time::sleep_until(deadline) => panic!("the worker never ended"),
            };
            self.heard(delivery, source).await;
        }
    }
}

pub(crate) fn request(id: i64, run: Run, parameters: Value) -> Grant {
    Grant {
        // As an owner makes them: the partition is in the low byte.
        execution_id: ExecutionId(id << 8 | 5),
        attempt: Attempt(1),
        action_id: ActionId(7),
        action_ref: "test.run".to_owned(),
        parameters: serde_json::value::to_raw_value(&parameters).unwrap(),
        run,
        timeout_seconds: 60,
        env: BTreeMap::new(),
        resources: Resources::default(),
        slots: None,
        traceparent: None,
    }
}

pub(crate) fn echo(id: i64) -> Grant {
    request(id, Run::Builtin(Builtin::Echo), json!({"id": id}))
}

pub(crate) fn sleep(id: i64, seconds: f64) -> Grant {
    request(
        id,
        Run::Builtin(Builtin::Sleep),
        json!({"seconds": seconds}),
    )
}

/// A program that writes its pid into a file and then ignores TERM for as long as anyone waits.
pub(crate) fn stubborn(id: i64, sign: &Path) -> Grant {
    let text = "trap '' TERM; echo $$ > \"$0.new\"; mv \"$0.new\" \"$0\"; sleep 300 & wait; wait";
    let argv = ["/bin/sh", "-c", text, sign.to_str().unwrap()].map(str::to_owned);
    request(id, Run::Program(argv.into()), json!({}))
}

/// The next attempt.
pub(crate) fn again(grant: &Grant) -> Grant {
    let attempt = grant.attempt.next();
    Grant {
        attempt,
        ..grant.clone()
    }
}

/// As a section names it.
pub(crate) fn named(grant: &Grant) -> GrantKey {
    grant.key().into()
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
