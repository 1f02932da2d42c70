//! Faults that last: what one thing cannot do stops nothing else, costs no delivery and no epoch,
//! and ends by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use attune_bus::{
    Bus, BusError, Depth, MemoryBus, Outgoing, PublishError, Subscriber, Subscription, Topic,
};
use attune_core::{
    ActionSpec, Builtin, Epoch, ExecutionId, OnWorkerLost, OwnerId, PartitionId, Run, millis,
};
use attune_executor::Counter;
use attune_executor_service::ExecutorOptions;
use attune_store::{ActionStore as _, PartitionStore as _};
use chrono::Utc;
use uuid::Uuid;

use crate::lives::Life;
use crate::member::Member;
use crate::system::{PARTITIONS, System, until};

/// How soon everything is done after a fault has ended.
const HEALED: Duration = Duration::from_secs(5);
/// Leases of which none is lost because a busy machine stands still for a second: that would be
/// another epoch, too.
const LEASE: Duration = Duration::from_secs(4);
/// No lease of a worker ends.
const EVER: Duration = Duration::from_secs(600);
/// How many executions of each action are asked for while a fault lasts.
const EACH: u64 = 13;

/// A bus that remembers what was subscribed: what was delivered through a subscription and is not
/// settled comes again only when that has ended, and its topic is received anew.
struct Watched {
    bus: MemoryBus,
    subscribed: Mutex<BTreeMap<String, usize>>,
}

impl Watched {
    fn new(bus: MemoryBus) -> Self {
        Self {
            bus,
            subscribed: Mutex::default(),
        }
    }

    /// How often each topic of a partition was received: once, unless something was redelivered.
    fn lives(&self) -> BTreeSet<usize> {
        let subscribed = self.subscribed.lock().unwrap();
        let of = |topic: Topic| subscribed.get(&topic.routing_key()).copied().unwrap_or(0);
        let partitions = (0..PARTITIONS).map(PartitionId);
        partitions
            .flat_map(|id| {
                let ends = [Topic::Control(id), Topic::ControlKept(id)];
                ends.into_iter()
                    .chain([Topic::Commands(id), Topic::Calls(id)])
            })
            .map(of)
            .collect()
    }
}

#[async_trait]
impl Bus for Watched {
    async fn publish(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        self.bus.publish(messages).await
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Subscriber, BusError> {
        let key = subscription.topic.routing_key();
        *self.subscribed.lock().unwrap().entry(key).or_default() += 1;
        self.bus.subscribe(subscription).await
    }

    async fn declare(&self, topic: &Topic) -> Result<(), BusError> {
        self.bus.declare(topic).await
    }

    async fn check(&self) -> Result<(), BusError> {
        self.bus.check().await
    }

    fn reach(&self) -> Result<(), BusError> {
        self.bus.reach()
    }

    async fn depth(&self, topic: &Topic) -> Result<Option<Depth>, BusError> {
        self.bus.depth(topic).await
    }

    async fn close(&self) {
        self.bus.close().await;
    }
}

impl System {
    /// Who owns each partition, and in which epoch.
    async fn epochs(&self) -> Vec<(Option<OwnerId>, Epoch)> {
        let leases = self.store.leases().await.unwrap();
        leases
            .iter()
            .map(|lease| (lease.owner, lease.epoch))
            .collect()
    }

    /// What keeps the owners of the partitions from their work, once all are in trouble, or none.
    async fn troubles(&self, all: bool) -> Option<Vec<String>> {
        let leases = self.store.leases().await.unwrap();
        let is_so = leases.iter().all(|lease| lease.trouble.is_some() == all);
        let troubles = leases.into_iter().filter_map(|lease| lease.trouble);
        is_so.then(|| troubles.map(|trouble| trouble.words).collect())
    }

    /// So many executions of each of these actions.
    async fn submit_each(&self, refs: &[String], count: u64) {
        for number in 0..count {
            for action_ref in refs {
                self.submit(action_ref, number).await;
            }
        }
    }
}

/// A disk is full: leases are renewed, which takes no room, and nothing else is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_refuses_what_is_decided_costs_nothing_but_time() {
    let system = System::new().await;
    let refs = system.actions().await;
    let bus = Arc::new(Watched::new(system.bus.clone()));
    let options = ExecutorOptions {
        lease_ttl: LEASE,
        ..System::options("one")
    };
    let mut member = Member::start_on(&system, options, Arc::clone(&bus) as Arc<dyn Bus>).await;
    member.serves(usize::from(PARTITIONS)).await;
    // Four run, and end while nothing can be written.
    let mut life = system.life_elsewhere(4, EVER).await;
    let mut running = Vec::new();
    for number in 0..4 {
        let action_ref = format!("test.running-{number}");
        system.elsewhere(&action_ref, OnWorkerLost::Fail).await;
        system.submit(&action_ref, 0).await;
        running.push(life.next().await);
    }
    let before = system.epochs().await;

    member.door.refuse_commits();
    for grant in &running {
        life.end(grant).await;
    }
    system.submit_each(&refs, EACH).await;
    let long = i64::try_from(millis(LEASE * 3 / 2)).unwrap();
    let lasting = member
        .trouble
        .wait_for(|trouble| trouble.as_ref().is_some_and(|it| it.for_ms >= long));
    let lasting = tokio::time::timeout(Duration::from_secs(40), lasting).await;
    let lasting = lasting.expect("it says nothing").unwrap().clone().unwrap();
    for words in [
        "the store refuses what is decided",
        "No space left on device",
    ] {
        assert!(lasting.words.contains(words), "{}", lasting.words);
    }
    let words = until("the leases say so", async || system.troubles(true).await).await;
    for words in words {
        assert!(words.contains("No space left on device"), "{words}");
    }
    assert_eq!(system.completed().await, 0, "nothing could be written");
    let refused = member.door.take_commits();
    let healed = Instant::now();
    assert!(refused > usize::from(PARTITIONS), "{refused} were refused");

    // Everything that was held up is written then.
    until("it has nothing more to say", async || {
        member.trouble.borrow_and_update().is_none().then_some(())
    })
    .await;
    let took = healed.elapsed();
    println!("{refused} commits were refused; none was {took:?} after the last");
    assert!(took < HEALED, "it took {took:?}");
    let all = EACH * refs.len() as u64 + running.len() as u64;
    until("all have ended", async || {
        (system.completed().await == all).then_some(())
    })
    .await;
    system.ran_in_order(&refs, EACH);
    until("nor have the leases", async || system.troubles(false).await).await;

    // No partition was loaded again, nothing was given back, nothing was given up.
    assert_eq!(system.epochs().await, before);
    assert_eq!(bus.lives(), BTreeSet::from([1]));
    assert_eq!(system.bus.unsettled(&Topic::DeadLetters), 0);
    let counted = |counter| member.counters.get(counter);
    assert_eq!(counted(Counter::CommitRefused), refused as u64);
    for counter in [Counter::CommitUnknown, Counter::Fenced, Counter::LetterKept] {
        assert_eq!(counted(counter), 0, "{counter:?}");
    }
    member.stop().await;
}

/// Nobody serves a pool: nothing of it is granted, and nothing else waits for that, not even in the same
/// partition.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_that_nobody_serves_holds_up_only_itself() {
    const POOL: &str = "dead";
    const DEAD: u64 = 300;
    let system = System::new().await;
    let refs = system.actions().await;
    let dead = in_partition(PartitionId::of(&refs[0], PARTITIONS));
    let mut spec = ActionSpec::new(dead.parse().unwrap(), Run::Builtin(Builtin::Noop));
    spec.pool = POOL.to_owned();
    let applied = system.store.apply_action(&spec, PARTITIONS, "test").await;
    let action_id = applied.unwrap().action.id;
    let member = system.member("one").await;
    member.serves(usize::from(PARTITIONS)).await;
    for number in 0..DEAD {
        system.submit(&dead, number).await;
    }
    let waits = || {
        let stats = member.queues.get_queue_stats(action_id)?;
        assert_eq!(stats.active_count, 0, "nobody could run it");
        (stats.queue_length == DEAD).then_some(())
    };
    until("all of it waits", async || waits()).await;

    let began = Instant::now();
    system.submit_each(&refs, EACH).await;
    let live = EACH * refs.len() as u64;
    until("the other pool has done its work", async || {
        (system.completed().await == live).then_some(())
    })
    .await;
    let took = began.elapsed();
    println!("{live} others had ended after {took:?}");
    assert!(took < HEALED, "it took {took:?}");
    system.ran_in_order(&refs, EACH);
    assert_eq!(waits(), Some(()));

    // Somebody comes: what waits is granted.
    let mut life = Life::begin(&system.store, &system.bus, POOL, 100, EVER).await;
    let mut ran: BTreeSet<ExecutionId> = BTreeSet::new();
    for _ in 0..DEAD {
        let grant = tokio::time::timeout(HEALED, life.next()).await.unwrap();
        assert!(ran.insert(grant.execution_id));
        life.end(&grant).await;
    }
    until("all have ended", async || {
        (system.completed().await == live + DEAD).then_some(())
    })
    .await;
    member.stop().await;
}

/// A ref that belongs to this partition.
fn in_partition(partition: PartitionId) -> String {
    let mut refs = (0..).map(|number| format!("test.dead-{number}"));
    let belongs = |text: &String| PartitionId::of(text, PARTITIONS) == partition;
    refs.find(belongs).unwrap()
}

/// Messages that only a newer program can read wait, what comes behind them is taken, and it is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_newer_version_are_told() {
    let system = System::new().await;
    let refs = system.actions().await;
    let mut member = system.member("only").await;
    member.serves(PARTITIONS.into()).await;
    assert_eq!(*member.trouble.borrow(), None);
    let partition = PartitionId::of(&refs[0], PARTITIONS);
    let body = serde_json::json!({
        "message_id": Uuid::now_v7(), "message_type": "partition.submit", "version": 99,
        "timestamp": Utc::now(), "payload": {"new": true},
    });
    let message = Outgoing::new(Topic::Commands(partition), Uuid::now_v7(), body.to_string());
    system.bus.publish(vec![message]).await.unwrap();
    for number in 0..EACH {
        system.submit(&refs[0], number).await;
    }
    system.all_ran(&refs[..1], EACH).await;
    let told = member.trouble.wait_for(Option::is_some);
    let told = tokio::time::timeout(HEALED, told).await.unwrap().unwrap();
    let words = told.as_ref().map(|trouble| trouble.words.clone());
    assert!(words.unwrap().contains("newer version"));
}
