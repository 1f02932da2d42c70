//! Owners, a life beside its model, and what goes wrong between them.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{ActionId, Attempt, Epoch, ExecutionId, OwnerId, PartitionId, Seq};
use proptest::prelude::*;

use super::tenure::Tenure;
use super::{Fate, Job, Naive};
use crate::{Entries, Granted, Key, Millis, Outcome, Report, Section, Stream, Taken};

const PARTITIONS: u16 = 2;
const ACTIONS: u16 = 2;
/// Executions of each action.
const EACH: u16 = 5;
const SLOTS: usize = 2;
/// How much is granted to the life at most: more than it runs, so that some waits.
const GRANTED: usize = 4;

/// Where an execution stands, by what is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Queued,
    Held,
    Ended,
}

#[derive(Debug)]
struct Execution {
    id: ExecutionId,
    action_id: ActionId,
    attempt: Attempt,
    standing: Standing,
    /// It was taken away by force.
    released: bool,
}

impl Execution {
    fn key(&self) -> Key {
        (self.id, self.attempt)
    }
}

/// A section on its way, and whether a copy of it has arrived.
#[derive(Debug, Clone)]
struct Flying {
    section: Section<Job>,
    has_copies: bool,
}

/// Everything around one life.
struct World {
    now: Millis,
    owners: [OwnerId; 2],
    executions: Vec<Execution>,
    current: Vec<Tenure>,
    stale: Vec<Tenure>,
    entries: Entries<Job>,
    naive: Naive,
    to_life: Vec<Flying>,
    /// What was lost of the sections.
    lost: BTreeSet<(PartitionId, Epoch, u64)>,
    to_owners: Vec<Report>,
    ends: Vec<Key>,
    begun: BTreeSet<Key>,
    /// By action, which have begun.
    starts: BTreeMap<ActionId, Vec<ExecutionId>>,
}

impl World {
    fn new() -> Self {
        let id = |n| format!("00000000-0000-0000-0000-00000000000{n}");
        let owners = [1, 2].map(|n| OwnerId(id(n).parse().unwrap()));
        let mut executions = Vec::new();
        for n in 0..u32::from(EACH * ACTIONS * PARTITIONS) {
            let partition = PartitionId((n % u32::from(PARTITIONS)) as u16);
            let action = i64::from(n % u32::from(PARTITIONS * ACTIONS));
            executions.push(Execution {
                id: ExecutionId::new(partition, Seq::new(Epoch(1), n)),
                action_id: ActionId(action),
                attempt: Attempt(0),
                standing: Standing::Queued,
                released: false,
            });
        }
        let tenure = |partition: u16| Tenure {
            partition: PartitionId(partition),
            owner: owners[usize::from(partition) % 2],
            epoch: Epoch(1),
            stream: Stream::default(),
            sent: 0,
            holds: BTreeSet::new(),
            settled: Vec::new(),
            cancel: Vec::new(),
        };
        Self {
            now: 0,
            owners,
            executions,
            current: (0..PARTITIONS).map(tenure).collect(),
            stale: Vec::new(),
            entries: Entries::new(SLOTS),
            naive: Naive::default(),
            to_life: Vec::new(),
            lost: BTreeSet::new(),
            to_owners: Vec::new(),
            ends: Vec::new(),
            begun: BTreeSet::new(),
            starts: BTreeMap::new(),
        }
    }

    fn execution(&mut self, key: Key) -> Option<&mut Execution> {
        let mut all = self.executions.iter_mut();
        all.find(|execution| execution.key() == key)
    }

    fn is_held(&self, key: Key) -> bool {
        let mut all = self.executions.iter();
        all.any(|execution| execution.key() == key && execution.standing == Standing::Held)
    }

    /// The owner of a partition commits, and says so.
    fn tell(&mut self, p: usize, most: usize) {
        let held: usize = self.current.iter().map(|tenure| tenure.holds.len()).sum();
        let room = most.min(GRANTED.saturating_sub(held));
        let tenure = &mut self.current[p];
        let all = self.executions.iter_mut();
        let queued = all.filter(|execution| {
            execution.standing == Standing::Queued && execution.id.partition() == tenure.partition
        });
        let mut grants = Vec::new();
        for execution in queued.take(room) {
            execution.attempt = execution.attempt.next();
            execution.standing = Standing::Held;
            grants.push(Job(execution.key(), execution.action_id));
        }
        let sections = tenure.sections(grants);
        self.send(sections);
    }

    /// Whether there is anything to say.
    fn has_news(&self, p: usize) -> bool {
        let tenure = &self.current[p];
        let is_queued = |execution: &Execution| {
            execution.standing == Standing::Queued && execution.id.partition() == tenure.partition
        };
        tenure.stream.needs_sync()
            || !tenure.settled.is_empty()
            || !tenure.cancel.is_empty()
            || self.executions.iter().any(is_queued)
    }

    fn send(&mut self, sections: Vec<Section<Job>>) {
        let sent = sections.into_iter().map(|section| Flying {
            section,
            has_copies: false,
        });
        self.to_life.extend(sent);
    }

    /// Whoever owns no longer, but does not know it, says again what it knows.
    fn tell_stale(&mut self, at: usize, cancels: bool) {
        let Some(tenure) = self.stale.get_mut(at) else {
            return;
        };
        if cancels {
            tenure.cancel.extend(tenure.holds.first().copied());
        } else {
            tenure.stream.has_lost();
        }
        let sections = tenure.sections(Vec::new());
        self.send(sections);
    }

    fn take_over(&mut self, p: usize) {
        let tenure = &mut self.current[p];
        let is_first = tenure.owner == self.owners[0];
        let next = Tenure {
            owner: self.owners[usize::from(is_first)],
            epoch: Epoch(tenure.epoch.0 + 1),
            stream: Stream::default(),
            sent: 0,
            settled: Vec::new(),
            cancel: Vec::new(),
            ..tenure.clone()
        };
        self.stale.push(std::mem::replace(tenure, next));
    }

    /// A section arrives; the life and the model must make the same of it.
    fn arrive(&mut self, section: Section<Job>) {
        let expected = self.naive.take(&section);
        let taken = self.entries.take(self.now, section);
        for key in &taken.kill {
            assert!(!self.is_held(*key), "a run is killed that holds its slot");
        }
        self.ends.extend(taken.again.iter().copied());
        self.ends.extend(taken.cancelled.iter().map(Granted::key));
        let sorted = |mut taken: Taken<Job>| {
            taken.kill.sort_unstable();
            taken.again.sort_unstable();
            taken.settled.sort_unstable();
            taken
        };
        assert_eq!(sorted(taken), sorted(expected));
    }

    /// The broker gives a message back: it was in no queue.
    fn bounce(&mut self, flying: Flying) {
        let section = flying.section;
        let mut all = self.current.iter_mut().chain(&mut self.stale);
        let of = |tenure: &&mut Tenure| {
            (tenure.partition, tenure.epoch) == (section.partition, section.epoch)
        };
        if let Some(tenure) = all.find(of) {
            tenure.stream.has_lost();
        }
        for Job(key, _) in section.grants {
            self.put_back(key, section.epoch);
        }
    }

    /// The owner in this epoch commits that a grant never began, if it may and that changes something.
    fn put_back(&mut self, key: Key, epoch: Epoch) {
        let p = usize::from(key.0.partition().0);
        if self.current[p].epoch != epoch || !self.current[p].holds.remove(&key) {
            return;
        }
        assert!(!self.begun.contains(&key), "it has begun and is given back");
        if let Some(execution) = self.execution(key) {
            execution.standing = Standing::Queued;
        }
    }

    fn hear(&mut self, report: Report) {
        let news = report.returned.iter().map(|returned| returned.key);
        for key in news {
            assert!(!self.begun.contains(&key), "it has begun and is given back");
            let p = usize::from(key.0.partition().0);
            if self.current[p].owner == report.owner {
                self.put_back(key, self.current[p].epoch);
                self.current[p].settled.push(key);
            }
            // It commits nothing any more, and settles only what it does not hold.
            for tenure in &mut self.stale {
                if tenure.owner == report.owner
                    && tenure.partition == key.0.partition()
                    && !tenure.holds.contains(&key)
                {
                    tenure.settled.push(key);
                }
            }
        }
        for partition in report.resync {
            let tenures = self.current.iter_mut().chain(&mut self.stale);
            let asked = |tenure: &&mut Tenure| {
                (tenure.owner, tenure.partition) == (report.owner, partition)
            };
            tenures
                .filter(asked)
                .for_each(|tenure| tenure.stream.has_lost());
        }
    }

    fn hear_end(&mut self, key: Key) {
        let p = usize::from(key.0.partition().0);
        if self.current[p].holds.remove(&key)
            && let Some(execution) = self.execution(key)
        {
            execution.standing = Standing::Ended;
        }
        self.current[p].settled.push(key);
    }

    /// Somebody takes a slot away by force.
    fn release(&mut self, p: usize) {
        let Some(key) = self.current[p].holds.pop_first() else {
            return;
        };
        self.current[p].settled.push(key);
        if let Some(execution) = self.execution(key) {
            execution.standing = Standing::Ended;
            execution.released = true;
        }
    }

    fn begin(&mut self, gives_up: bool) {
        let Some(Job(key, action_id)) = self.entries.begin_next(self.now) else {
            let mut waiting = self.naive.all(Fate::Waiting).into_iter();
            let waits = waiting.any(|key| self.naive.has_room(&key));
            let running = self.naive.all(Fate::Running).len();
            assert!(
                !waits || running >= SLOTS,
                "something may begin and does not"
            );
            return;
        };
        assert_eq!(self.naive.fates.get(&key), Some(&Fate::Waiting));
        assert!(self.naive.all(Fate::Running).len() < SLOTS, "too many run");
        assert!(self.naive.has_room(&key), "too many of an action run");
        if gives_up {
            self.entries.give_up(key, "it could not begin");
            self.naive.fates.insert(key, Fate::Returned);
            let late = BTreeSet::from([action_id]);
            self.naive.give_back(Some(&late));
            return;
        }
        self.naive.fates.insert(key, Fate::Running);
        assert!(self.begun.insert(key), "an attempt begins twice");
        let mut all = self.executions.iter();
        let execution = all.find(|execution| execution.key() == key);
        let may = execution.is_some_and(|of| of.standing == Standing::Held || of.released);
        assert!(may, "something begins that nobody has granted");
        let starts = self.starts.entry(action_id).or_default();
        starts.push(key.0);
        assert!(starts.is_sorted(), "{action_id} begins out of order");
    }

    fn end(&mut self, at: usize) {
        let running: Vec<Key> = self.naive.all(Fate::Running).into_iter().collect();
        let Some(key) = running.get(at % running.len().max(1)).copied() else {
            return;
        };
        assert_eq!(self.entries.end(key), Outcome::Kept);
        assert_eq!(self.entries.end(key), Outcome::Gone);
        self.naive.fates.insert(key, Fate::Ended);
        self.ends.push(key);
    }

    fn give_back_late(&mut self) {
        // What has waited for long is known to the entries alone: the model follows them.
        let before = self.entries.waiting();
        self.entries.give_back_late(self.now, 0);
        let waiting: BTreeSet<Key> = self.entries.waiting_keys();
        assert!(before == waiting.len() || self.entries.running() == SLOTS);
        let all = self.naive.all(Fate::Waiting);
        let late = all
            .difference(&waiting)
            .map(|key| self.naive.actions[key])
            .collect();
        self.naive.give_back(Some(&late));
    }

    fn report(&mut self) {
        for report in self.entries.reports(self.now) {
            let of_owner = |key: &Key| {
                let partition = usize::from(key.0.partition().0);
                self.current[partition].owner == report.owner
            };
            if !report.returned.is_empty() && self.stale.is_empty() {
                let told: BTreeSet<Key> = report.returned.iter().map(|of| of.key).collect();
                let mut all = self.naive.all(Fate::Returned);
                all.retain(of_owner);
                assert_eq!(told, all, "what is given back is reported as a whole");
            }
            for started in &report.started {
                assert_eq!(self.naive.fates.get(&started.key), Some(&Fate::Running));
            }
            self.to_owners.push(report);
        }
        assert!(!self.entries.has_news(), "everything was just reported");
    }

    /// The life holds exactly what it has not been told to forget.
    fn check(&self) {
        let of = |wanted| self.naive.all(wanted).len();
        let (waiting, running) = (of(Fate::Waiting), of(Fate::Running));
        assert_eq!(
            (self.entries.waiting(), self.entries.running()),
            (waiting, running)
        );
        assert!(running <= SLOTS);
        let ended = self.naive.all(Fate::Ended);
        assert!(ended.iter().all(|key| self.entries.is_unsettled(key)));
        let unsettled = ended.len();
        let kept = waiting + running + unsettled + of(Fate::Returned);
        assert_eq!(self.entries.len(), kept);
    }

    fn step(&mut self, what: u8, at: usize) {
        let p = at % usize::from(PARTITIONS);
        let flying = at % self.to_life.len().max(1);
        let report = at % self.to_owners.len().max(1);
        let end = at % self.ends.len().max(1);
        match what {
            0..=15 => self.tell(p, at % 4),
            16..=17 => self.current[p].stream.has_lost(),
            18..=20 => self.take_over(p),
            21..=24 => self.tell_stale(at % self.stale.len().max(1), what == 21),
            25..=26 => self.release(p),
            27..=29 => {
                let key = self.current[p].holds.first().copied();
                self.current[p].cancel.extend(key);
            }
            // Most arrives in its order.
            30..=46 if !self.to_life.is_empty() => {
                let next = self.to_life.remove(0);
                self.arrive(next.section);
            }
            47..=51 if !self.to_life.is_empty() => {
                let next = self.to_life.remove(flying);
                self.arrive(next.section);
            }
            52..=55 if !self.to_life.is_empty() => {
                self.to_life[flying].has_copies = true;
                self.arrive(self.to_life[flying].section.clone());
            }
            56..=58 if !self.to_life.is_empty() => {
                let section = self.to_life.remove(flying).section;
                let place = (section.partition, section.epoch, section.number);
                self.lost.insert(place);
            }
            59..=61 if !self.to_life.is_empty() && !self.to_life[flying].has_copies => {
                let next = self.to_life.remove(flying);
                self.bounce(next);
            }
            62..=75 => self.begin(false),
            76 => self.begin(true),
            77..=85 => self.end(at),
            86..=93 => self.report(),
            94..=100 if !self.to_owners.is_empty() => {
                let report = self.to_owners.remove(report);
                self.hear(report);
            }
            101..=102 if !self.to_owners.is_empty() => self.hear(self.to_owners[report].clone()),
            103..=104 if !self.to_owners.is_empty() => {
                self.to_owners.remove(report);
            }
            105..=110 if !self.ends.is_empty() => {
                let key = self.ends.remove(end);
                self.hear_end(key);
            }
            111 if !self.ends.is_empty() => self.hear_end(self.ends[end]),
            112..=113 if !self.ends.is_empty() => {
                self.ends.remove(end);
            }
            114 => self.entries.link_is_new(),
            115 => {
                self.entries.give_back_all("it stops");
                self.naive.give_back(None);
            }
            116..=118 => self.give_back_late(),
            119..=127 => self.now += at as Millis % 300,
            _ => {}
        }
        self.check();
    }

    /// Nothing is lost any more: everything ends, and nothing is left. That the last section was lost is seen
    /// by its owner, that another was, by the life.
    fn settle(&mut self) {
        for tenure in &mut self.current {
            let last = (tenure.partition, tenure.epoch, tenure.sent.wrapping_sub(1));
            if self.lost.contains(&last) {
                tenure.stream.has_lost();
            }
        }
        for _ in 0..200 {
            self.now += 600;
            for p in 0..usize::from(PARTITIONS) {
                if self.has_news(p) {
                    self.tell(p, GRANTED);
                }
            }
            for flying in std::mem::take(&mut self.to_life) {
                self.arrive(flying.section);
            }
            self.give_back_late();
            self.begin(false);
            self.begin(false);
            self.report();
            self.end(0);
            self.end(0);
            self.ends.extend(self.naive.all(Fate::Ended));
            for key in std::mem::take(&mut self.ends) {
                self.hear_end(key);
            }
            for report in std::mem::take(&mut self.to_owners) {
                self.hear(report);
            }
            self.check();
            let mut all = self.executions.iter();
            let is_done = all.all(|execution| execution.standing == Standing::Ended);
            if is_done && self.entries.is_empty() {
                return;
            }
        }
        panic!("it does not come to an end: {:?}", self.entries);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 10_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_life_is_as_good_as_one_that_never_forgets(
        steps in proptest::collection::vec((0..128_u8, 0..1_000_usize), 0..120),
    ) {
        let mut world = World::new();
        for (what, at) in steps {
            world.step(what, at);
        }
        world.settle();
    }
}
