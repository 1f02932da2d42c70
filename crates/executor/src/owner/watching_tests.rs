//! Tests of how an owner judges the leases of others: by what it sees move and by its own clock,
//! while the store's clock does what it likes.

use super::*;
use crate::leases::is_over_after;
use crate::partition::ReconcileBounds;
use crate::stored::{StoredExecutor, StoredLease, WorkerEnd};
use attune_core::WorkerId;

const TTL: Millis = 15_000;
const GRACE: Millis = 5_000;
const TWO_HOURS: Millis = 2 * 3_600_000;
const PARTITIONS: u16 = 4;
/// How much later than it could an owner may notice something: the time between two looks, and
/// some jitter.
const SLACK: Millis = TTL / 10 + 200;

/// An owner with a store in which others renew, or do not.
struct World {
    owner: Owner,
    now: Millis,
    store_ahead: Millis,
    leases: Vec<StoredLease>,
    executors: Vec<StoredExecutor>,
    workers: Vec<WorkerEnd>,
    /// What was taken, and when.
    taken: Vec<(PartitionId, Millis)>,
    /// Workers whose leases were ended, and when.
    ended: Vec<(WorkerId, Millis)>,
    notices: Vec<Notice>,
    /// Until then the store does not answer.
    away_until: Millis,
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
                },
                queue: QueueConfig {
                    max_queue_length: 100,
                    queue_timeout_seconds: 60,
                },
                lease_ttl: TTL,
                round_max_items: 100,
                round_max_bytes: 1 << 20,
                stats_interval: 1_000,
                stats_refresh: 60_000,
                reconcile: ReconcileBounds {
                    worker_grace: GRACE,
                    republish_after: 30_000,
                    interval: 10_000,
                },
                page_rows: 10_000,
                slice_rows: 2_000,
                keep_log: false,
            }),
            now: 1_000_000,
            store_ahead: 0,
            leases: (0..PARTITIONS).map(lease).collect(),
            executors: vec![StoredExecutor {
                executor: other,
                renewals: 1,
                live: true,
            }],
            workers: Vec::new(),
            taken: Vec::new(),
            ended: Vec::new(),
            notices: Vec::new(),
            away_until: 0,
        }
    }

    fn worker(&mut self) -> WorkerId {
        let worker = WorkerId::fresh();
        self.workers.push(WorkerEnd {
            worker,
            renewals: 0,
            ttl: 3_000,
            ended: false,
        });
        worker
    }

    /// The others renew everything.
    fn renew(&mut self) {
        let others = self.leases.iter_mut();
        let others = others.filter(|lease| lease.holder != Some(self.owner.options.id));
        others.for_each(|lease| lease.renewals += 1);
        self.executors.iter_mut().for_each(|row| row.renewals += 1);
        let mut alive: Vec<_> = self.workers.iter_mut().filter(|row| !row.ended).collect();
        alive.iter_mut().for_each(|row| row.renewals += 1);
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
            while let Some(input) = inputs.pop_front() {
                for output in self.owner.step(self.now, input) {
                    match output {
                        Output::Call(id, call) => {
                            let reply = self.answer(call);
                            inputs.push_back(Input::Answered(id, reply));
                        }
                        Output::Notice(notice) => self.notices.push(notice),
                        _ => {}
                    }
                }
            }
            self.now = self
                .owner
                .wake_at(self.now)
                .max(self.now + 1)
                .min(self.now + 100);
        }
    }

    fn answer(&mut self, call: Call) -> Reply {
        if self.now < self.away_until {
            return Reply::Failed(Failure {
                refused: false,
                words: "away".to_owned(),
            });
        }
        match call {
            Call::Announce { .. } => Reply::Announced,
            Call::Look => Reply::Looked(Looked {
                store_now: 1_700_000_000_000 + self.now + self.store_ahead,
                executors: self.executors.clone(),
                leases: self.leases.clone(),
            }),
            Call::Renew(held) => Reply::Renewed(held.into_iter().map(|(id, _)| id).collect()),
            Call::TakeOver(observed) => {
                let mut taken = Vec::new();
                for seen in observed {
                    let lease = &mut self.leases[usize::from(seen.partition.0)];
                    assert_eq!(lease.observed(), seen, "nothing moved meanwhile");
                    lease.epoch = Epoch(lease.epoch.0 + 1);
                    lease.holder = Some(self.owner.options.id);
                    taken.push((lease.partition, lease.epoch));
                    self.taken.push((lease.partition, self.now));
                }
                Reply::Acquired(taken)
            }
            Call::WorkerEnds => Reply::WorkerEnds(self.workers.clone()),
            Call::EndWorkers(observed) => {
                for (worker, renewals) in &observed {
                    let mut rows = self.workers.iter_mut();
                    let row = rows.find(|row| row.worker == *worker).unwrap();
                    assert_eq!(row.renewals, *renewals);
                    row.ended = true;
                    self.ended.push((*worker, self.now));
                }
                Reply::EndedWorkers(observed.iter().map(|(worker, _)| *worker).collect())
            }
            Call::LoadQueues(_) => Reply::Queues {
                actions: vec![],
                totals: vec![],
            },
            Call::LoadRows { .. } => Reply::Rows {
                rows: vec![],
                next: None,
            },
            Call::ScanRows { .. } => Reply::Slice {
                rows: vec![],
                last: None,
            },
            Call::LoadSlots(_) => Reply::Slots(vec![]),
            other => panic!("nobody asked for this: {other:?}"),
        }
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
    let began = world.now;
    world.pass(60_000, false);
    let end = began + is_over_after(TTL);
    world.assert_all_taken(end, end + SLACK);
}

#[test]
fn while_the_store_is_away_no_lease_runs_out() {
    let mut world = World::new();
    let worker = world.worker();
    world.pass(5_000, true);
    world.away_until = world.now + 60_000;
    world.pass(60_000, true);
    assert_eq!((world.taken.len(), world.ended.len()), (0, 0));
    // Who comes back with it keeps everything, and who does not loses it after all.
    world.pass(10_000, true);
    assert_eq!((world.taken.len(), world.ended.len()), (0, 0));
    world.pass(60_000, false);
    assert_eq!(world.taken.len(), usize::from(PARTITIONS));
    assert_eq!(world.ended[0].0, worker);
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
