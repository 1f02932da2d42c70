//! Says what was committed: dispatches to the workers, answers to the askers, snapshots of the
//! queues; then acknowledges.
//!
//! A dispatch is a doorbell: the grant is stored, and whoever takes over, or the reconciler, rings
//! again. So nothing here ever holds the owner up. Each pool has a line of its own, bounded; what
//! the bus refuses is a decision:
//!
//! - *no room* or *no route*: nothing more is granted to the pool until it takes a dispatch again;
//! - *too large* or *invalid*: the execution ends as failed, because nobody could ever run it;
//! - *unknown*: told again, because only one worker's claim of an attempt succeeds.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use attune_core::{ExecutionId, PartitionId, Refusal};

use super::backoff::Backoff;
use super::snapshots::Snapshots;
use super::workers::PoolWorkers;
use super::{
    Call, Dispatch, Notice, Output, Owner, PublishId, Published, Purpose, Reply, Send, Stage,
};
use crate::counters::Counter;
use crate::partition::{Event, Grantee};
use crate::queue::Millis;
use crate::round::Round;
use crate::stored::Body;

/// How long a pool that takes no dispatches is left alone at most, in milliseconds. Trying costs one
/// message; that a pool takes dispatches again is noticed this much later, and by as much once more when
/// the answer to a try is lost.
const LONGEST_RETRY: Millis = 2_000;
/// How many dispatches to one pool may be unconfirmed at once.
const MAX_UNCONFIRMED: usize = 32;
/// How many dispatches wait for a pool that takes none; more are left to the reconciler.
const MAX_WAITING: usize = 1_000;
/// How many bytes of them.
const MAX_WAITING_BYTES: usize = 4 * 1024 * 1024;
/// How many bytes may be on their way to the bus, or wait for pools that take dispatches, before
/// commands must wait.
const MAX_BYTES_ON_THE_WAY: usize = 64 * 1024 * 1024;
/// How many dispatches are published together.
const MAX_TOGETHER: usize = 1_000;
/// The slots that a worker has by default: so many are reckoned with while none is known.
const SLOTS: usize = 64;
/// How many bytes of them, but always one; likewise about how many are read together.
const MAX_BYTES_TOGETHER: usize = 8 * 1024 * 1024;
/// How many executions are dispatched once more at a time, and how often: a partition that was
/// taken over must not flood the broker with what mostly waits at the workers already.
const AGAIN_AT_ONCE: usize = 500;
/// How many at first, when nobody knows how large their bodies are; and how many times more than
/// the last time.
const AGAIN_AT_FIRST: usize = 8;
const AGAIN_MORE: usize = 8;
const AGAIN_INTERVAL: Millis = 50;

/// The line of one pool.
#[derive(Debug)]
struct Pool {
    waiting: VecDeque<(PartitionId, Dispatch)>,
    waiting_bytes: usize,
    unconfirmed: usize,
    /// It takes no dispatches; nothing is granted to it.
    closed: bool,
    retry_at: Millis,
    backoff: Backoff,
}

impl Pool {
    fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            unconfirmed: 0,
            closed: false,
            retry_at: Millis::MIN,
            backoff: Backoff::new(100, LONGEST_RETRY),
        }
    }

    fn is_due(&self, now: Millis) -> bool {
        let most = if self.closed { 1 } else { MAX_UNCONFIRMED };
        !self.waiting.is_empty() && self.unconfirmed < most && self.retry_at <= now
    }

    /// The first in line that are published together.
    fn next(&mut self) -> (Vec<(PartitionId, Dispatch)>, usize) {
        // One is enough to see whether a pool takes dispatches again.
        let most = if self.closed { 1 } else { MAX_TOGETHER };
        let mut items = Vec::with_capacity(most.min(self.waiting.len()));
        let mut bytes = 0;
        while items.len() < most
            && let Some(first) = self.waiting.front()
            && (items.is_empty() || bytes + size(&first.1) <= MAX_BYTES_TOGETHER)
            && let Some(item) = self.waiting.pop_front()
        {
            bytes += size(&item.1);
            items.push(item);
        }
        self.waiting_bytes -= bytes;
        (items, bytes)
    }
}

/// Dispatches on their way to the bus.
#[derive(Debug)]
struct OnTheWay {
    pool: String,
    items: Vec<(PartitionId, Dispatch)>,
    bytes: usize,
}

/// What is to be told, and what is being told.
#[derive(Debug, Default)]
pub(super) struct Telling {
    pools: BTreeMap<String, Pool>,
    on_the_way: BTreeMap<PublishId, OnTheWay>,
    bytes_on_the_way: usize,
    /// To be dispatched once more.
    again: VecDeque<(PartitionId, Grantee)>,
    again_at: Millis,
    /// How many of them are read at a time: few while they are large.
    again_at_once: Option<usize>,
    /// Those of them whose bodies are being read.
    reading: HashMap<ExecutionId, (PartitionId, Grantee)>,
    pub(super) snapshots: Snapshots,
}

impl Telling {
    pub(super) fn wake_at(&self) -> Option<Millis> {
        let pools = self.pools.values().filter(|pool| !pool.waiting.is_empty());
        let pools = pools
            .filter(|pool| pool.unconfirmed == 0)
            .map(|pool| pool.retry_at);
        let again = self.may_read().then_some(self.again_at);
        pools.chain(again).min()
    }

    /// Whether so much is on its way that commands must wait. What a closed pool has in line is
    /// bounded by itself, and stops nobody else.
    pub(super) fn is_full(&self) -> bool {
        let open = self.pools.values().filter(|pool| !pool.closed);
        let waiting: usize = open.map(|pool| pool.waiting_bytes).sum();
        self.bytes_on_the_way + waiting >= MAX_BYTES_ON_THE_WAY
    }

    /// Whether bodies of what is dispatched once more may be read.
    fn may_read(&self) -> bool {
        !self.again.is_empty() && self.reading.is_empty() && !self.is_full()
    }

    /// So many bodies were read, of so many bytes.
    fn have_read(&mut self, count: usize, bytes: usize) {
        let before = self.again_at_once.unwrap_or(AGAIN_AT_FIRST);
        let fit = (MAX_BYTES_TOGETHER * count)
            .checked_div(bytes)
            .unwrap_or(AGAIN_AT_ONCE);
        let most = (before * AGAIN_MORE).min(AGAIN_AT_ONCE);
        self.again_at_once = Some(fit.clamp(1, most));
    }

    /// An execution may have been dispatched in vain.
    pub(super) fn tell_again(&mut self, partition: PartitionId, grantee: Grantee) {
        self.again.push_back((partition, grantee));
    }

    /// The pools that take no dispatches.
    pub(super) fn closed_pools(&self) -> impl Iterator<Item = Arc<str>> + '_ {
        let closed = self.pools.iter().filter(|(_, pool)| pool.closed);
        closed.map(|(name, _)| Arc::from(name.as_str()))
    }

    /// A partition is served no more: its next owner tells what was not told.
    pub(super) fn forget(&mut self, partition: PartitionId) {
        for pool in self.pools.values_mut() {
            pool.waiting.retain(|(of, dispatch)| {
                if *of == partition {
                    pool.waiting_bytes -= size(dispatch);
                }
                *of != partition
            });
        }
        self.again.retain(|(of, _)| *of != partition);
        self.snapshots.forget(partition);
    }
}

/// How many of so many dispatches one message holds. It is cheaper the more it holds, but one worker
/// gets all of it, and what it cannot run at once waits there: no more than its slots. More than half of
/// them only while as many come to every worker, in as many messages; otherwise two share what one of
/// them could run alone.
fn pack_of(dispatches: usize, workers: Option<PoolWorkers>, most: usize) -> usize {
    let slots = workers.map_or(SLOTS, |of| of.least_slots);
    let most = slots.clamp(1, most);
    let share = workers.map_or(0, |of| dispatches / of.count.max(1));
    let even = share.div_ceil(share.div_ceil(most).max(1));
    even.max(slots.div_ceil(2)).min(most)
}

fn size(dispatch: &Dispatch) -> usize {
    dispatch.body.parameters.get().len() + 512
}

impl Owner {
    /// Tells what a round has decided, which is stored now.
    pub(super) fn tell_round(&mut self, now: Millis, round: Round, bodies: Vec<Body>) {
        let Round { commit, tells } = round;
        let mut bodies: HashMap<ExecutionId, Body> =
            bodies.into_iter().map(|body| (body.id, body)).collect();
        // Whoever wrote it has let go of it, so that nothing is copied as a rule.
        let inserts = Arc::try_unwrap(commit)
            .map(|commit| commit.batch.inserts)
            .unwrap_or_else(|commit| commit.batch.inserts.clone());
        for new in inserts {
            if new.status.holds_slot() {
                let submission = Arc::unwrap_or_clone(new.submission);
                let body = Body {
                    id: new.id,
                    parameters: submission.parameters,
                    timeout_seconds: submission.timeout_seconds,
                };
                bodies.insert(new.id, body);
            }
        }
        let (mut answers, mut cancels, mut acks) = (Vec::new(), Vec::new(), Vec::new());
        for (id, tell) in tells {
            let counts = tell.counts.into_iter();
            self.out
                .extend(counts.map(|(counter, times)| Output::Count(counter, times)));
            self.out
                .extend(tell.notices.into_iter().map(Output::Notice));
            let touched = tell.touched.into_iter().map(|action_id| (id, action_id));
            self.telling.snapshots.changed(touched);
            for grantee in tell.dispatches {
                match bodies.remove(&grantee.execution_id) {
                    Some(body) => self.line_up(id, Dispatch { grantee, body }),
                    // The grant is stored; its body is read by itself.
                    None => self.telling.tell_again(id, grantee),
                }
            }
            let again = tell.redispatches.into_iter().map(|grantee| (id, grantee));
            self.telling.again.extend(again);
            answers.extend(tell.answers);
            cancels.extend(tell.cancels);
            acks.extend(tell.acks);
        }
        if !answers.is_empty() {
            self.out.push(Output::Send(Send::Answers(answers)));
        }
        if !cancels.is_empty() {
            self.out.push(Output::Send(Send::Cancels(cancels)));
        }
        self.go_on_telling(now);
        // Last of all: what it led to is stored, and told or found again by whoever comes next.
        if !acks.is_empty() {
            self.out.push(Output::Ack(acks));
        }
    }

    /// Puts a dispatch into the line of its pool.
    fn line_up(&mut self, partition: PartitionId, dispatch: Dispatch) {
        let name = &dispatch.grantee.action.spec.pool;
        if !self.telling.pools.contains_key(name) {
            self.telling.pools.insert(name.clone(), Pool::new());
        }
        if let Some(pool) = self.telling.pools.get_mut(name) {
            pool.waiting_bytes += size(&dispatch);
            pool.waiting.push_back((partition, dispatch));
        }
        if let Some(place) = self.places.get_mut(&partition) {
            place.untold += 1;
        }
    }

    fn told(&mut self, partition: PartitionId, count: usize) {
        if let Some(place) = self.places.get_mut(&partition) {
            place.untold = place.untold.saturating_sub(count);
        }
    }

    /// Tells what can be told now.
    pub(super) fn go_on_telling(&mut self, now: Millis) {
        self.open_forgotten_pools();
        let due = self
            .telling
            .pools
            .iter()
            .filter(|(_, pool)| pool.is_due(now));
        let due: Vec<String> = due.map(|(name, _)| name.clone()).collect();
        for name in due {
            self.dispatch(&name);
        }
        self.read_bodies(now);
        self.publish_snapshots(now);
    }

    fn dispatch(&mut self, name: &str) {
        let id = PublishId(self.number());
        let Some(pool) = self.telling.pools.get_mut(name) else {
            return;
        };
        let (items, bytes) = pool.next();
        pool.unconfirmed += 1;
        self.telling.bytes_on_the_way += bytes;
        let dispatches: Vec<Dispatch> = items.iter().map(|(_, it)| it.clone()).collect();
        let workers = self.workers.of_pool(name);
        let pack = pack_of(dispatches.len(), workers, self.options.dispatch_max_pack);
        let sent = OnTheWay {
            pool: name.to_owned(),
            items,
            bytes,
        };
        self.telling.on_the_way.insert(id, sent);
        self.out.push(Output::Dispatch {
            id,
            dispatches,
            pack,
        });
    }

    /// It is known what came of something that was published.
    pub(super) fn published(&mut self, now: Millis, id: PublishId, published: Published) {
        let Some(sent) = self.telling.on_the_way.remove(&id) else {
            return;
        };
        let OnTheWay { pool, items, bytes } = sent;
        self.telling.bytes_on_the_way -= bytes;
        if let Some(pool) = self.telling.pools.get_mut(&pool) {
            pool.unconfirmed -= 1;
        }
        self.dispatched(now, &pool, items, published);
    }

    fn dispatched(
        &mut self,
        now: Millis,
        name: &str,
        items: Vec<(PartitionId, Dispatch)>,
        published: Published,
    ) {
        let mut back = Vec::new();
        let mut why_closed = None;
        match published {
            Published::Confirmed => {
                for (partition, _) in items {
                    self.told(partition, 1);
                }
            }
            Published::Unknown => back = items,
            Published::Refused(refused) => {
                let mut refused: BTreeMap<usize, Refusal> = refused.into_iter().collect();
                for (place, (partition, dispatch)) in items.into_iter().enumerate() {
                    match refused.remove(&place) {
                        None => self.told(partition, 1),
                        Some(Refusal::Full) => {
                            why_closed = Some("its queue is full");
                            back.push((partition, dispatch));
                        }
                        Some(Refusal::Unroutable) => {
                            why_closed = Some("nobody has ever received there");
                            back.push((partition, dispatch));
                        }
                        Some(refusal) => self.undispatchable(partition, &dispatch, &refusal),
                    }
                }
            }
        }
        if back.is_empty() {
            return self.open_pool(name);
        }
        self.line_up_again(now, name, back);
        if let Some(why) = why_closed {
            self.close_pool(name, why);
        }
    }

    fn undispatchable(&mut self, partition: PartitionId, dispatch: &Dispatch, refusal: &Refusal) {
        self.told(partition, 1);
        let why = match refusal {
            Refusal::TooLarge { bytes, max } => {
                format!("its dispatch has {bytes} bytes, and a message may have {max}")
            }
            Refusal::Invalid(words) => format!("its dispatch cannot be sent: {words}"),
            Refusal::Full | Refusal::Unroutable => return,
        };
        let event = Event::Undispatchable {
            execution_id: dispatch.grantee.execution_id,
            attempt: dispatch.grantee.attempt,
            why,
        };
        self.pending.push_back((partition, event));
    }

    /// What was not taken stands first in line again; what finds no room there is left to the
    /// reconciler.
    fn line_up_again(&mut self, now: Millis, name: &str, back: Vec<(PartitionId, Dispatch)>) {
        let Some(pool) = self.telling.pools.get_mut(name) else {
            return;
        };
        pool.retry_at = now + pool.backoff.next_delay(&mut self.chance);
        for (partition, dispatch) in back.into_iter().rev() {
            // A partition that is not served any more has another owner, who tells it again.
            let place = self.places.get(&partition);
            if place.is_some_and(|place| matches!(place.stage, Stage::Serving(_))) {
                pool.waiting_bytes += size(&dispatch);
                pool.waiting.push_front((partition, dispatch));
            }
        }
        let mut dropped = Vec::new();
        while pool.waiting.len() > MAX_WAITING || pool.waiting_bytes > MAX_WAITING_BYTES {
            let Some((partition, dispatch)) = pool.waiting.pop_back() else {
                break;
            };
            pool.waiting_bytes -= size(&dispatch);
            dropped.push(partition);
        }
        let count = dropped.len();
        if count > 0 {
            let pool = name.to_owned();
            self.say(Notice::DispatchesDropped { pool, count });
        }
        for partition in dropped {
            self.count(Counter::DispatchDropped);
            self.told(partition, 1);
        }
    }

    fn close_pool(&mut self, name: &str, why: &'static str) {
        if let Some(pool) = self.telling.pools.get_mut(name).filter(|pool| !pool.closed) {
            pool.closed = true;
            let pool = name.to_owned();
            self.say(Notice::PoolClosed { pool, why });
            self.set_pool(name, true);
        }
    }

    fn open_pool(&mut self, name: &str) {
        let Some(pool) = self.telling.pools.get_mut(name) else {
            return;
        };
        pool.backoff = Backoff::new(100, LONGEST_RETRY);
        pool.retry_at = Millis::MIN;
        let was_closed = std::mem::take(&mut pool.closed);
        if pool.waiting.is_empty() && pool.unconfirmed == 0 {
            self.telling.pools.remove(name);
        }
        if was_closed {
            let pool = name.to_owned();
            self.say(Notice::PoolOpen { pool });
            self.set_pool(name, false);
        }
    }

    /// Opens pools for which no dispatch is left, because the partitions that they were of have
    /// other owners by now: nothing would ever tell that they take dispatches again.
    fn open_forgotten_pools(&mut self) {
        let pools = self.telling.pools.iter();
        let forgotten = pools
            .filter(|(_, pool)| pool.closed && pool.waiting.is_empty() && pool.unconfirmed == 0);
        let forgotten: Vec<String> = forgotten.map(|(name, _)| name.clone()).collect();
        for name in forgotten {
            self.open_pool(&name);
        }
    }

    fn set_pool(&mut self, name: &str, closed: bool) {
        let name: Arc<str> = Arc::from(name);
        let served = self.places.iter();
        let served = served.filter(|(_, place)| matches!(place.stage, Stage::Serving(_)));
        for (id, _) in served {
            let name = Arc::clone(&name);
            self.pending.push_back((*id, Event::Pool { name, closed }));
        }
    }

    /// Reads the bodies of what is dispatched once more, a few at a time, and only of what still
    /// holds its slot.
    fn read_bodies(&mut self, now: Millis) {
        if !self.telling.may_read() || now < self.telling.again_at {
            return;
        }
        self.telling.again_at = now + AGAIN_INTERVAL;
        let at_once = self.telling.again_at_once.unwrap_or(AGAIN_AT_FIRST);
        let many = self.telling.again.len().min(at_once);
        let next: Vec<(PartitionId, Grantee)> = self.telling.again.drain(..many).collect();
        for (id, grantee) in next {
            let partition = self.partition(id);
            let held = partition.and_then(|partition| partition.holds(grantee.execution_id));
            if held == Some(grantee.attempt) {
                let reading = &mut self.telling.reading;
                reading.insert(grantee.execution_id, (id, grantee));
            }
        }
        let mut ids: Vec<ExecutionId> = self.telling.reading.keys().copied().collect();
        if !ids.is_empty() {
            ids.sort_unstable();
            self.call(Purpose::Bodies, Call::LoadBodies(ids));
        }
    }

    pub(super) fn bodies_loaded(&mut self, now: Millis, reply: Reply) {
        let mut reading = std::mem::take(&mut self.telling.reading);
        let Reply::Bodies(bodies) = reply else {
            let mut again: Vec<(PartitionId, Grantee)> = reading.into_values().collect();
            again.sort_unstable_by_key(|(_, grantee)| grantee.execution_id);
            self.telling.again.extend(again);
            self.telling.again_at = now + self.chance.between(500, 1_000);
            return;
        };
        let bytes = bodies.iter().map(|body| body.parameters.get().len()).sum();
        self.telling.have_read(bodies.len(), bytes);
        let last = bodies.iter().map(|body| body.id).max();
        for body in bodies {
            if let Some((id, grantee)) = reading.remove(&body.id) {
                self.line_up(id, Dispatch { grantee, body });
            }
        }
        // The store ends an answer where it grows too large: what lies behind may be there.
        let mut behind: Vec<(PartitionId, Grantee)> = reading.into_values().collect();
        behind.retain(|(_, grantee)| last.is_some_and(|last| grantee.execution_id > last));
        behind.sort_unstable_by_key(|(_, grantee)| Reverse(grantee.execution_id));
        for one in behind {
            self.telling.again.push_front(one);
        }
    }
}

#[cfg(test)]
#[path = "telling_tests.rs"]
mod tests;
