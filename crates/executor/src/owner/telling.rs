//! Says what was committed: dispatches to the workers, answers to the askers, snapshots of the
//! queues; then acknowledges; then says what is refused, of which nothing is stored.
//!
//! A dispatch is a doorbell: the grant is stored, and whoever takes over, or the reconciler, rings
//! again. So nothing here ever holds the owner up. Each pool has a line of its own, bounded
//! (`pools.rs`); what the bus refuses is a decision:
//!
//! - *no room* or *no route*: nothing more is granted to the pool until it takes a dispatch again;
//! - *too large* or *invalid*: the execution ends as failed, because nobody could ever run it;
//! - *unknown*: told again, because only one worker's claim of an attempt succeeds.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use attune_core::{ExecutionId, PartitionId, Refusal};

use super::again::{AGAIN_AT_ONCE, Again};
use super::pools::{Pool, pack_of};
use super::snapshots::Snapshots;
use super::{Dispatch, Notice, Output, Owner, PublishId, Published, Send, Stage};
use crate::counters::Counter;
use crate::partition::{Answer, Event};
use crate::queue::Millis;
use crate::round::Round;
use crate::stored::Body;

/// How many bytes may be on their way to the bus, or wait for pools that take dispatches, before
/// commands must wait.
const MAX_BYTES_ON_THE_WAY: usize = 64 * 1024 * 1024;
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
    pub(super) again: Again,
    pub(super) snapshots: Snapshots,
}

#[cfg(test)]
impl Telling {
    /// A pool that stays as it is: a try is under way, and not answered.
    pub(super) fn know_pool(&mut self, name: &str, closed: bool) {
        let mut pool = Pool::new();
        (pool.closed, pool.unconfirmed) = (closed, 1);
        self.pools.insert(name.to_owned(), pool);
    }
}

impl Telling {
    pub(super) fn wake_at(&self) -> Option<Millis> {
        let pools = self.pools.values().filter(|pool| !pool.waiting.is_empty());
        let pools = pools
            .filter(|pool| pool.unconfirmed == 0)
            .map(|pool| pool.retry_at);
        let may_read = !self.is_full();
        let is_any = self.pools.values().any(Pool::has_room_again);
        let again = may_read.then(|| self.again.wake_at(is_any)).flatten();
        pools.chain(again).min()
    }

    /// Whether so much is on its way that commands must wait. What a closed pool has in line is
    /// bounded by itself, and stops nobody else.
    pub(super) fn is_full(&self) -> bool {
        let open = self.pools.values().filter(|pool| !pool.closed);
        let waiting: usize = open.map(|pool| pool.waiting_bytes).sum();
        self.bytes_on_the_way + waiting >= MAX_BYTES_ON_THE_WAY
    }

    /// Takes some of what found no room in the line of a pool that takes dispatches again.
    pub(super) fn take_dropped(&mut self) {
        let mut pools = self.pools.iter_mut();
        let Some((name, pool)) = pools.find(|(_, pool)| pool.has_room_again()) else {
            return;
        };
        let some = std::iter::from_fn(|| pool.dropped.pop_first());
        let some = some.take(AGAIN_AT_ONCE).map(|(_, whom)| whom);
        self.again.extend(some);
        if pool.dropped.is_empty() {
            let name = name.clone();
            self.pools.remove(&name);
        }
    }

    /// The pools that take no dispatches.
    pub(super) fn closed_pools(&self) -> impl Iterator<Item = Arc<str>> + '_ {
        let closed = self.pools.iter().filter(|(_, pool)| pool.closed);
        closed.map(|(name, _)| Arc::from(name.as_str()))
    }

    /// A partition is served no more: its next owner tells what was not told.
    pub(super) fn forget(&mut self, partition: PartitionId) {
        for pool in self.pools.values_mut() {
            pool.forget(partition);
        }
        self.again.forget(partition);
        self.snapshots.forget(partition);
    }
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
        let (mut refusals, mut events) = (Vec::new(), Vec::new());
        for (id, tell) in tells {
            let tell = tell.whole();
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
                    None => self.telling.again.push(id, grantee),
                }
            }
            let again = tell.redispatches.into_iter().map(|grantee| (id, grantee));
            self.telling.again.extend(again);
            cancels.extend(tell.cancels);
            events.extend(tell.events);
            let is_refusal = |(_, answer): &(_, Answer)| answer.outcome.is_err();
            let (no, yes): (Vec<_>, Vec<_>) = tell.answers.into_iter().partition(is_refusal);
            answers.extend(yes);
            if no.is_empty() {
                acks.extend(tell.acks);
            } else {
                // By itself: nobody is told when a message of it comes again.
                refusals.push(Output::Refuse {
                    deliveries: tell.acks,
                    answers: no,
                });
            }
        }
        if !answers.is_empty() {
            self.out.push(Output::Send(Send::Answers(answers)));
        }
        if !cancels.is_empty() {
            self.out.push(Output::Send(Send::Cancels(cancels)));
        }
        if !events.is_empty() {
            self.out.push(Output::Send(Send::Events(events)));
        }
        self.go_on_telling(now);
        // Last of all: what it led to is stored, and told or found again by whoever comes next.
        if !acks.is_empty() {
            self.out.push(Output::Ack(acks));
        }
        self.out.extend(refusals);
    }

    /// Puts a dispatch into the line of its pool.
    pub(super) fn line_up(&mut self, partition: PartitionId, dispatch: Dispatch) {
        let name = &dispatch.grantee.action.spec.pool;
        if !self.telling.pools.contains_key(name) {
            self.telling.pools.insert(name.clone(), Pool::new());
        }
        if let Some(pool) = self.telling.pools.get_mut(name) {
            pool.push_back(partition, dispatch);
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

    /// What was not taken stands first in line again; of what finds no room there, only whom it was
    /// for is kept.
    fn line_up_again(&mut self, now: Millis, name: &str, back: Vec<(PartitionId, Dispatch)>) {
        let Some(pool) = self.telling.pools.get_mut(name) else {
            return;
        };
        pool.retry_at = now + pool.backoff.next_delay(&mut self.chance);
        for (partition, dispatch) in back.into_iter().rev() {
            // A partition that is not served any more has another owner, who tells it again.
            let place = self.places.get(&partition);
            if place.is_some_and(|place| matches!(place.stage, Stage::Serving(_))) {
                pool.push_front(partition, dispatch);
            }
        }
        let dropped = pool.drop_what_has_no_room(self.options.pool_line);
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
        let was_closed = pool.open();
        if pool.is_idle() && pool.dropped.is_empty() {
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
        let forgotten = pools.filter(|(_, pool)| pool.closed && pool.is_idle());
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
}

#[cfg(test)]
#[path = "telling_tests.rs"]
mod tests;
