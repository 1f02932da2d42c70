//! Reads the bodies of what was granted, where the answer to the commit did not bring them, a few at a time,
//! and only of what still holds its slot.
//!
//! One body that cannot be read fails the read of all that are asked for with it. They are asked for
//! again by halves, at once, until one is left alone: that one waits a little, is told, and holds up
//! nobody else.
//!
//! Whoever is granted ahead of its slot is not told before those who were granted before it: its worker would
//! hand a slot on to it that is another one's.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};

use attune_core::{ActionId, Bug, Epoch, ExecutionId, PartitionId};
use attune_dispatch::Key;

use super::{Call, Dispatch, Owner, Purpose, Reply, Trouble};
use crate::partition::Grantee;
use crate::queue::Millis;
use crate::stored::Body;

/// Whom a grant is for.
type Whom = (PartitionId, Grantee);

/// How many bytes of bodies are read together, but always one.
const MAX_BYTES_TOGETHER: usize = 8 * 1024 * 1024;
/// How many bodies are read at a time, and how often.
const AGAIN_AT_ONCE: usize = 500;
/// How many at first, when nobody knows how large their bodies are; and how many times more than
/// the last time.
const AGAIN_AT_FIRST: usize = 8;
const AGAIN_MORE: usize = 8;
const AGAIN_INTERVAL: Millis = 50;

/// A body that could not be read, alone.
#[derive(Debug)]
struct Unread {
    whom: Whom,
    since: Millis,
    words: String,
    /// When it is asked for again, unless it is in line.
    at: Option<Millis>,
}

/// Somebody who is not told yet: its body is not there, or that of somebody before it.
#[derive(Debug)]
struct Untold {
    whom: Whom,
    body: Option<Body>,
}

impl Untold {
    /// What its worker is told, once its body is there.
    fn dispatch(self) -> Option<(PartitionId, Dispatch)> {
        let (partition, grantee) = self.whom;
        let body = self.body?;
        Some((partition, Dispatch { grantee, body }))
    }
}

/// What was granted and cannot be told yet.
#[derive(Debug, Default)]
pub(super) struct Again {
    queue: VecDeque<Whom>,
    /// Everybody who is not told, by action, in the order of their grants.
    lines: BTreeMap<ActionId, VecDeque<Untold>>,
    at: Millis,
    /// How many are read at a time: few while they are large.
    at_once: Option<usize>,
    /// Those whose bodies are being read.
    reading: HashMap<ExecutionId, Whom>,
    /// By grant: one that was taken back may be here beside the next of its execution.
    unread: BTreeMap<Key, Unread>,
    /// The last read came to nothing, although it was about one alone.
    has_failed: bool,
}

impl Again {
    /// Takes a grant in, in order; gives it back with its body where it can be told at once.
    pub(super) fn line_up(
        &mut self,
        partition: PartitionId,
        grantee: Grantee,
        body: Option<Body>,
    ) -> Option<Dispatch> {
        let action_id = grantee.action.id;
        let is_held_up = grantee.slots.is_some() && self.lines.contains_key(&action_id);
        let is_held_up = is_held_up && !Bug::ToldAhead.is_planted();
        let body = match body {
            Some(body) if !is_held_up => return Some(Dispatch { grantee, body }),
            body => body,
        };
        let whom = (partition, grantee);
        if body.is_none() {
            self.queue.push_back(whom.clone());
        }
        let line = self.lines.entry(action_id).or_default();
        line.push_back(Untold { whom, body });
        None
    }

    /// It is known what can be told of somebody: this body, or nothing because its grant is over. Gives all who can
    /// be told now.
    fn settle(&mut self, (_, grantee): &Whom, body: Option<Body>) -> Vec<(PartitionId, Dispatch)> {
        let action_id = grantee.action.id;
        let Some(line) = self.lines.get_mut(&action_id) else {
            return Vec::new();
        };
        let is_it = |untold: &Untold| untold.whom.1.key() == grantee.key();
        let mut told = Vec::new();
        if let Some(at) = line.iter().position(is_it) {
            let waits_its_turn = grantee.slots.is_some() && body.is_some();
            line[at].body = body;
            // Who has a slot is told whoever comes before.
            if !waits_its_turn {
                told.extend(line.remove(at).and_then(Untold::dispatch));
            }
        }
        while let Some(first) = line.pop_front_if(|untold| untold.body.is_some()) {
            told.extend(first.dispatch());
        }
        if line.is_empty() {
            self.lines.remove(&action_id);
        }
        told
    }

    /// Everything that was granted and not told yet.
    pub(super) fn all(&self) -> impl Iterator<Item = Key> + '_ {
        let untold = self.lines.values().flatten();
        untold.map(|it| it.whom.1.key())
    }

    /// Those of an action that were granted and not told yet, in the order of their grants.
    pub(super) fn of_action(&self, action_id: ActionId) -> impl Iterator<Item = &Grantee> + '_ {
        let untold = self.lines.get(&action_id).into_iter().flatten();
        untold.map(|it| &it.whom.1)
    }

    /// A partition is served no more.
    pub(super) fn forget(&mut self, partition: PartitionId) {
        self.queue.retain(|(of, _)| *of != partition);
        self.unread.retain(|_, unread| unread.whom.0 != partition);
        self.lines.retain(|_, line| {
            line.retain(|untold| untold.whom.0 != partition);
            !line.is_empty()
        });
    }

    /// When something is to be read.
    pub(super) fn wake_at(&self) -> Option<Millis> {
        let waits = !self.queue.is_empty();
        let unread = self.unread.values().filter_map(|unread| unread.at);
        let due = waits.then_some(self.at).into_iter().chain(unread).min();
        due.filter(|_| self.reading.is_empty())
            .map(|at| at.max(self.at))
    }

    /// Puts those in line again whose time has come.
    fn take_due(&mut self, now: Millis) {
        for unread in self.unread.values_mut() {
            if unread.at.is_some_and(|at| at <= now) {
                unread.at = None;
                self.queue.push_back(unread.whom.clone());
            }
        }
    }

    /// So many bodies were read, of so many bytes.
    fn have_read(&mut self, count: usize, bytes: usize) {
        let before = self.at_once.unwrap_or(AGAIN_AT_FIRST);
        let fit = (MAX_BYTES_TOGETHER * count)
            .checked_div(bytes)
            .unwrap_or(AGAIN_AT_ONCE);
        let most = (before * AGAIN_MORE).min(AGAIN_AT_ONCE);
        self.at_once = Some(fit.clamp(1, most));
        self.has_failed = false;
    }

    /// These are the next ones.
    fn put_first(&mut self, mut some: Vec<Whom>) {
        some.sort_unstable_by_key(|(_, grantee)| Reverse(grantee.execution_id));
        for whom in some {
            self.queue.push_front(whom);
        }
    }

    /// One body cannot be read.
    fn set_aside(&mut self, whom: Whom, now: Millis, words: &str) -> &mut Unread {
        let unread = self.unread.entry(whom.1.key());
        let unread = unread.or_insert_with(|| Unread {
            whom: whom.clone(),
            since: now,
            words: String::new(),
            at: None,
        });
        words.clone_into(&mut unread.words);
        unread
    }
}

impl Owner {
    /// The partitions with executions whose bodies cannot be read, in which epochs, and why.
    pub(super) fn unread_bodies(
        &self,
        now: Millis,
    ) -> impl Iterator<Item = (PartitionId, Epoch, Trouble)> + '_ {
        let unread = self.telling.again.unread.iter();
        unread.filter_map(move |((execution_id, _), unread)| {
            let partition = unread.whom.0;
            let place = self.places.get(&partition)?;
            let words = format!(
                "the parameters of execution {execution_id} cannot be read, so it is not dispatched: {}",
                unread.words
            );
            let for_ms = now - unread.since;
            Some((partition, place.epoch, Trouble { for_ms, words }))
        })
    }

    pub(super) fn read_bodies(&mut self, now: Millis) {
        let again = &mut self.telling.again;
        if !again.reading.is_empty() || now < again.at {
            return;
        }
        again.take_due(now);
        if self.links.is_full() {
            return;
        }
        let again = &mut self.telling.again;
        if again.queue.is_empty() {
            return;
        }
        again.at = now + AGAIN_INTERVAL;
        let at_once = again.at_once.unwrap_or(AGAIN_AT_FIRST);
        let many = again.queue.len().min(at_once);
        let next: Vec<Whom> = again.queue.drain(..many).collect();
        for (id, grantee) in next {
            let execution_id = grantee.execution_id;
            let partition = self.partition(id);
            let held = partition.and_then(|partition| partition.holds(execution_id));
            let again = &mut self.telling.again;
            if held == Some(grantee.attempt) {
                again.reading.insert(execution_id, (id, grantee));
            } else {
                again.unread.remove(&grantee.key());
                let told = again.settle(&(id, grantee), None);
                self.tell_untold(told);
            }
        }
        let mut ids: Vec<ExecutionId> = self.telling.again.reading.keys().copied().collect();
        if !ids.is_empty() {
            ids.sort_unstable();
            self.call(Purpose::Bodies, Call::LoadBodies(ids));
        }
    }

    pub(super) fn bodies_loaded(&mut self, now: Millis, reply: Reply) {
        let again = &mut self.telling.again;
        let mut reading = std::mem::take(&mut again.reading);
        let bodies = match reply {
            Reply::Bodies(bodies) => bodies,
            Reply::Failed(failure) => return self.bodies_failed(now, reading, &failure.words),
            _ => return,
        };
        let bytes = bodies.iter().map(|body| body.parameters.get().len()).sum();
        again.have_read(bodies.len(), bytes);
        let last = bodies.iter().map(|body| body.id).max();
        for body in bodies {
            if let Some(whom) = reading.remove(&body.id) {
                let again = &mut self.telling.again;
                again.unread.remove(&whom.1.key());
                let told = again.settle(&whom, Some(body));
                self.tell_untold(told);
            }
        }
        // The store ends an answer where it grows too large: what lies behind may be there.
        let is_behind = |(_, grantee): &Whom| last.is_some_and(|last| grantee.execution_id > last);
        let (behind, gone): (Vec<Whom>, _) = reading.into_values().partition(is_behind);
        let again = &mut self.telling.again;
        again.put_first(behind);
        // The others have ended, or the comparison finds out what became of them.
        let mut told = Vec::new();
        for whom in gone {
            again.unread.remove(&whom.1.key());
            told.extend(again.settle(&whom, None));
        }
        self.tell_untold(told);
    }

    fn tell_untold(&mut self, told: Vec<(PartitionId, Dispatch)>) {
        for (id, dispatch) in told {
            let (worker, key) = (dispatch.grantee.worker, dispatch.grantee.key());
            self.line_up(id, dispatch);
            // Its worker was asked to end it before it knew of it, and has not heard that.
            if self
                .partition(id)
                .is_some_and(|it| it.is_asked_to_end(worker, key))
            {
                self.links.cancel(id, worker, key);
            }
        }
    }

    fn bodies_failed(&mut self, now: Millis, reading: HashMap<ExecutionId, Whom>, words: &str) {
        let again = &mut self.telling.again;
        let mut failed: Vec<Whom> = reading.into_values().collect();
        if failed.len() > 1 {
            again.at_once = Some(failed.len().div_ceil(2));
            return again.put_first(failed);
        }
        if let Some(whom) = failed.pop() {
            let unread = again.set_aside(whom, now, words);
            unread.at = Some(now + self.chance.between(1_000, 2_000));
        }
        // It may be the store that cannot be read, and not this one alone.
        if std::mem::replace(&mut again.has_failed, true) {
            again.at = now + self.chance.between(500, 1_000);
        }
    }
}
