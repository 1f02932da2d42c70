//! Tests of how an owner judges the leases of others, by its own clock, and compares slots with the store's.

#[path = "beside_tests.rs"]
mod beside;
#[path = "comparing_tests.rs"]
mod comparing;
#[path = "cut_off_tests.rs"]
mod cut_off;
#[path = "greeting_tests.rs"]
mod greeting;
#[path = "late_tests.rs"]
mod late;
#[path = "links_tests.rs"]
mod links_tests;
#[path = "look_ups_tests.rs"]
mod look_ups;
#[path = "operating_tests.rs"]
mod operating_tests;
#[path = "pausing_tests.rs"]
mod pausing;
#[path = "renewing_tests.rs"]
mod renewing;
#[path = "speakers_tests.rs"]
mod speakers;
#[path = "watching_store.rs"]
mod store;
#[path = "untold_tests.rs"]
mod untold;

use super::*;
use crate::leases::is_over_after;
use crate::partition::ReconcileBounds;
use crate::stored::{
    Audit, Body, Sets, StoredExecution, StoredExecutor, StoredLease, StoredSlot, WorkerEnd,
};
use attune_core::{
    Action, ActionId, Attempt, ExecutionId, PartOfOperation, Priority, RequestGap, RequestId, Seq,
    Status, WorkerId,
};
use attune_secrets::Keyring;
use links_tests::Sent;
use std::sync::Arc;

const TTL: Millis = 15_000;
const GRACE: Millis = 5_000;
const TWO_HOURS: Millis = 2 * 3_600_000;
const PARTITIONS: u16 = 16;
/// How much later than it could an owner may notice something: the time between two looks, and jitter.
const SLACK: Millis = TTL / 10 + 200;

/// An owner with a store in which others renew, or do not.
struct World {
    owner: Owner,
    now: Millis,
    store_ahead: Millis,
    own_ahead: Millis,
    leases: Vec<StoredLease>,
    executors: Vec<StoredExecutor>,
    workers: Vec<WorkerEnd>,
    /// The one action there is, as a rule.
    action: Action,
    others: Vec<Action>,
    /// Who holds a slot, and whether its page shows it to whoever takes its partition.
    slots: Vec<(StoredSlot, bool)>,
    holds_back: Option<fn(&Call) -> bool>,
    held_back: Vec<(CallId, Reply)>,
    sets: Sets,
    /// Closed unless a test opens it: then requests are looked up.
    gap: RequestGap,
    operations: Vec<PartOfOperation>,
    /// How large the parameters of an execution are.
    body_bytes: usize,
    /// The rows of what is dispatched once more are gone.
    are_gone: bool,
    /// How many bodies were read each time.
    read: Vec<usize>,
    /// What workers were sent, and is not confirmed yet.
    sent: Vec<Sent>,
    /// What was taken, and when.
    taken: Vec<(PartitionId, Millis)>,
    /// Workers whose leases were ended, and when.
    ended: Vec<(WorkerId, Millis)>,
    /// Executions whose slots were taken back, and when.
    taken_back: Vec<(ExecutionId, Millis)>,
    notices: Vec<Notice>,
    /// Whether it said that it is cut off, each time.
    announced: Vec<bool>,
    /// Until then the store does not answer.
    away_until: Millis,
    /// It says so only when it is back.
    is_mute: bool,
    /// How many subscriptions were ended.
    given_back: usize,
    /// It lets nobody take what others have held.
    refuses_takes: bool,
    /// It refuses to read what waits in this partition.
    unreadable: Option<PartitionId>,
    /// It refuses to look this action up.
    unread: Option<&'static str>,
    /// It refuses these calls.
    refuses: Option<fn(&Call) -> bool>,
    acked: Vec<DeliveryId>,
    /// The requests that entries of the audit log name, and how many dead letters there are.
    entries: Vec<RequestId>,
    letters: usize,
    /// How often in a row it wanted to be woken at once, and nothing came of it.
    is_idle: u32,
}

impl World {
    /// Somebody else holds every partition.
    fn new() -> Self {
        let other = OwnerId::fresh();
        let lease = |partition| StoredLease {
            partition: PartitionId(partition),
            holder: Some(other),
            epoch: Epoch(3),
            renewals: 10,
            ttl: TTL,
            wanted_owner: None,
        };
        Self {
            owner: Owner::new(OwnerOptions {
                id: OwnerId::fresh(),
                cluster: ClusterBounds {
                    partitions: PARTITIONS,
                    max_message_bytes: 1 << 20,
                    lane_length: 0,
                },
                queue: QueueConfig {
                    max_queue_length: 100,
                    queue_timeout_seconds: 60,
                },
                lease_ttl: TTL,
                round_max_items: 100,
                step_items: 1_000,
                round_max_bytes: 1 << 20,
                stats_interval: 1_000,
                stats_refresh: 60_000,
                reconcile: ReconcileBounds {
                    worker_grace: GRACE,
                    interval: 10_000,
                },
                page_rows: 10_000,
                slice_rows: 2_000,
                operation_rows: 1_000,
                keep_log: false,
                secrets: Keyring::default(),
            }),
            now: 1_000_000,
            store_ahead: 0,
            own_ahead: 0,
            leases: (0..PARTITIONS).map(lease).collect(),
            executors: vec![StoredExecutor {
                executor: other,
                renewals: 1,
                live: true,
                cut_off: false,
            }],
            workers: Vec::new(),
            action: action(),
            others: Vec::new(),
            slots: Vec::new(),
            holds_back: None,
            refuses_takes: false,
            held_back: Vec::new(),
            sets: Sets::default(),
            gap: RequestGap {
                above: Some(RequestId::HIGHEST),
                below: None,
            },
            operations: Vec::new(),
            body_bytes: 0,
            are_gone: false,
            read: Vec::new(),
            sent: Vec::new(),
            is_idle: 0,
            taken: Vec::new(),
            ended: Vec::new(),
            taken_back: Vec::new(),
            notices: Vec::new(),
            announced: Vec::new(),
            away_until: 0,
            is_mute: false,
            given_back: 0,
            unreadable: None,
            unread: None,
            refuses: None,
            acked: Vec::new(),
            entries: Vec::new(),
            letters: 0,
        }
    }

    /// The others renew everything.
    fn renew(&mut self) {
        let me = self.owner.options.id;
        let others = self.leases.iter_mut();
        let others = others.filter(|lease| lease.holder.is_some_and(|holder| holder != me));
        others.for_each(|lease| lease.renewals += 1);
        self.executors.iter_mut().for_each(|row| row.renewals += 1);
        let mut alive: Vec<_> = self.workers.iter_mut().filter(|row| !row.ended).collect();
        alive.iter_mut().for_each(|row| row.renewals += 1);
    }

    fn is_silent(&self) -> bool {
        self.is_mute && self.now < self.away_until
    }

    /// Time passes; whoever is alive renews every second.
    fn pass(&mut self, time: Millis, renews: bool) {
        let until = self.now + time;
        let mut renew_at = self.now;
        while self.now < until {
            if renews && self.now >= renew_at && self.now >= self.away_until {
                self.renew();
                renew_at = self.now + 1_000;
            }
            let mut inputs = VecDeque::from([Input::Timer]);
            if self.holds_back.is_none() && !self.is_silent() {
                let late = self.held_back.drain(..);
                inputs.extend(late.map(|(id, reply)| Input::Answered(id, reply)));
            }
            let is_alone = inputs.len() == 1;
            let has_done = self.give(inputs);
            let wake_at = self.owner.wake_at(self.now);
            let is_over = self.owner.has_ended();
            let is_idle = is_alone && !has_done && wake_at <= self.now && !is_over;
            self.is_idle = if is_idle { self.is_idle + 1 } else { 0 };
            assert!(self.is_idle < 2, "it turns round and round: {wake_at}");
            self.now = wake_at.max(self.now + 1).min(self.now + 100);
        }
    }

    /// This happens now, and what comes of it; whether anything does.
    fn give(&mut self, mut inputs: VecDeque<Input>) -> bool {
        let mut has_done = false;
        while let Some(input) = inputs.pop_front() {
            for output in self.owner.step(self.now, input) {
                has_done = true;
                match output {
                    Output::Call(id, call) => {
                        let is_late = self.is_silent()
                            || self.holds_back.is_some_and(|is_held| is_held(&call));
                        let reply = self.answer(call);
                        if is_late {
                            self.held_back.push((id, reply));
                        } else {
                            inputs.push_back(Input::Answered(id, reply));
                        }
                    }
                    Output::Unsubscribe(id) => {
                        self.given_back += 1;
                        inputs.push_back(Input::Unsubscribed(id));
                    }
                    Output::Notice(notice) => self.notices.push(notice),
                    Output::Ack(ids) => self.acked.extend(ids),
                    Output::Refuse { deliveries, .. } => self.acked.extend(deliveries),
                    Output::Dispatch {
                        id,
                        worker,
                        sections,
                        ..
                    } => self.sent.push(Sent {
                        id,
                        worker,
                        sections,
                    }),
                    _ => {}
                }
            }
            assert_eq!(self.owner.miscounted(), None);
        }
        has_done
    }

    /// Nobody holds anything.
    fn free(mut self) -> Self {
        for lease in &mut self.leases {
            (lease.holder, lease.ttl) = (None, 0);
        }
        self.executors.clear();
        self
    }

    /// The owner has every partition, and `n` executions run on this worker.
    fn serving(n: u32, worker: WorkerId) -> Self {
        let mut world = Self::new().free();
        let slots = (1..=n).map(|place| (slot(place, worker), true));
        world.slots = slots.collect();
        world.pass(5_000, true);
        assert_eq!(world.held(), n as usize);
        world
    }

    /// How many slots the owner believes to be held.
    fn held(&self) -> usize {
        let partition = self.owner.partition(PartitionId(0));
        partition.map_or(0, |partition| partition.held().len())
    }

    /// Everything was taken from its silent holder within this time.
    fn assert_all_taken(&self, from: Millis, to: Millis) {
        assert_eq!(self.taken.len(), usize::from(PARTITIONS));
        for (partition, at) in &self.taken {
            assert!(
                (from..to).contains(at),
                "{partition}: {at} is not in {from}..{to}"
            );
        }
    }
}

fn action() -> Action {
    let mut spec = attune_core::ActionSpec::core_pack().remove(0);
    spec.policy.concurrency.limit = Some(3);
    Action {
        id: ActionId(1),
        partition: PartitionId(0),
        version: 1,
        spec,
    }
}

fn failed(words: &str) -> Reply {
    Reply::Failed(Failure {
        refused: false,
        words: words.to_owned(),
    })
}

fn slot(place: u32, worker: WorkerId) -> StoredSlot {
    StoredSlot {
        front: false,
        id: ExecutionId::new(PartitionId(0), Seq::new(Epoch(2), place)),
        action_id: ActionId(1),
        priority: Priority::Normal,
        created: 1_700_000_000_000,
        attempt: Attempt(1),
        grant_no: Some(1),
        unbegun: 0,
        status: Status::Running,
        worker: Some(worker),
        worker_over: false,
        never_begun: false,
        requested_at: 1_700_000_000_500,
        running_for: Some(500),
        cancel_requested: false,
        demand: None,
        asker: None,
        kept_until: None,
    }
}

#[test]
fn a_step_of_the_stores_clock_takes_nothing_from_who_renews() {
    for step in [TWO_HOURS, -TWO_HOURS] {
        let mut world = World::new();
        world.worker();
        world.pass(5_000, true);
        world.store_ahead = step;
        // By the store's clock everybody is gone from here on, or nobody ever.
        world
            .executors
            .iter_mut()
            .for_each(|row| row.live = step < 0);
        world.pass(60_000, true);
        assert_eq!(world.taken, []);
        assert_eq!(world.ended, []);
        let drift = |notice: &&Notice| matches!(notice, Notice::ClockDrift { .. });
        assert_eq!(world.notices.iter().filter(drift).count(), 1);
    }
}

#[test]
fn who_starts_while_a_clock_is_wrong_is_early_with_nothing_and_loads_again_when_it_is_right() {
    for (store, own) in [
        (TWO_HOURS, 0),
        (-TWO_HOURS, 0),
        (0, TWO_HOURS),
        (0, -TWO_HOURS),
    ] {
        let mut world = World::new().free();
        (world.store_ahead, world.own_ahead) = (store, own);
        world.pass(5_000, true);
        let right = 1_700_000_000_000 + world.now;
        let early = store.min(own);
        assert_eq!(world.owner.store_time(world.now), right + early);
        assert_eq!(world.owner.clock.stamp(world.now), right + store.max(own));
        (world.store_ahead, world.own_ahead) = (0, 0);
        let taken = world.taken.len();
        world.pass(5_000, true);
        let right = 1_700_000_000_000 + world.now;
        assert_eq!(world.owner.store_time(world.now), right);
        assert_eq!(world.owner.clock.stamp(world.now), right);
        assert_eq!(world.owner.served(), usize::from(PARTITIONS));
        let epochs = world.taken.len() - taken;
        let again = if early < 0 {
            usize::from(PARTITIONS)
        } else {
            0
        };
        assert_eq!(epochs, again, "once, if the time has moved: {store} {own}");
        let told = |it: fn(&Notice) -> bool| world.notices.iter().filter(|one| it(one)).count();
        assert_eq!(told(|it| matches!(it, Notice::ClocksDiffer { .. })), 1);
        assert_eq!(told(|it| matches!(it, Notice::ClocksAgree { .. })), 1);
    }
}

#[test]
fn what_a_dead_owner_held_is_taken_after_its_lease_and_a_grace_whatever_the_clock_says() {
    for step in [0, TWO_HOURS, -TWO_HOURS] {
        let mut world = World::new();
        world.pass(5_000, true);
        let died = world.now;
        world.store_ahead = step;
        world.pass(60_000, false);
        let end = died + is_over_after(TTL);
        world.assert_all_taken(end - 1_000, end + SLACK);
        assert_eq!(world.owner.served(), usize::from(PARTITIONS));
    }
}

#[test]
fn an_owner_that_has_watched_nothing_waits_for_a_whole_lease() {
    let mut world = World::new();
    // By the store's clock the lease was over long ago.
    world.executors.iter_mut().for_each(|row| row.live = false);
    let end = world.now + is_over_after(TTL);
    world.pass(60_000, false);
    world.assert_all_taken(end, end + SLACK);
}

#[test]
fn a_silent_worker_is_ended_once_after_its_lease_and_the_grace() {
    for step in [0, TWO_HOURS, -TWO_HOURS] {
        let mut world = World::new();
        let worker = world.worker();
        world.pass(5_000, true);
        let died = world.now;
        world.store_ahead = step;
        world.pass(60_000, false);
        let [(who, at)] = world.ended[..] else {
            panic!("{:?}", world.ended);
        };
        assert_eq!(who, worker);
        let end = died + 3_000 + GRACE;
        assert!((end - 1_000..end + 700).contains(&at), "{at}, not {end}");
    }
}
