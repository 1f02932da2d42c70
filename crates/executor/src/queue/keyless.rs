//! What workers give back because they lack the key with which its parameters are sealed: who it was, and how long
//! its queue rests when nobody seems to have the key.
//!
//! Nobody of an action passes somebody else by that: what came back stands at its old place, and the whole queue
//! rests. So it costs a grant and a return now and then, and not as many as workers can give back, however many
//! workers lack the key. Nothing of this is stored: whoever takes the queue over learns it again.

use std::collections::BTreeMap;
use std::sync::Arc;

use attune_core::explain::Reason;
use attune_core::{ExecutionId, LacksKey, WorkerId};

use super::action_queue::ActionQueue;
use super::entry::Millis;
use super::explaining::time;

/// How many executions are remembered of a queue.
const KEPT: usize = 1_000;
/// How long a queue rests for the first time, and at most.
const FIRST_REST: Millis = 1_000;
const LONGEST_REST: Millis = 30_000;

/// What workers could not open.
#[derive(Debug, Clone)]
pub(super) struct Keyless {
    /// Those that were given back. One that has begun, or has left the queue, does not count.
    given_back: BTreeMap<ExecutionId, GivenBack>,
    /// Which came last.
    last: Option<ExecutionId>,
    /// How often something came back since anything of the queue has begun.
    in_row: usize,
    /// How long it rests next.
    rest: Millis,
    /// Until when it rests.
    until: Option<Millis>,
}

/// An execution that was given back.
#[derive(Debug, Clone)]
struct GivenBack {
    key: Arc<str>,
    /// Which life of a worker lacked it last, and when.
    worker: WorkerId,
    at: Millis,
    /// How often it was given back.
    times: u64,
}

impl Default for Keyless {
    fn default() -> Self {
        Self {
            given_back: BTreeMap::new(),
            last: None,
            in_row: 0,
            rest: FIRST_REST,
            until: None,
        }
    }
}

impl Keyless {
    fn reason(&self, given: &GivenBack, times: u64) -> Reason {
        Reason::Key {
            key: given.key.to_string(),
            times,
            worker: given.worker,
            worker_name: None,
            last_at: time(given.at),
            until: self.until.map(time),
        }
    }
}

impl ActionQueue {
    /// Notes that a worker lacks the key of what it was granted, and is about to give it back; its pool has so many
    /// lives. Where each of them may have had its turn the queue rests: whether it does from now on.
    pub(crate) fn note_keyless(
        &mut self,
        now: Millis,
        execution_id: ExecutionId,
        (worker, key): (WorkerId, Arc<str>),
        lives: usize,
    ) -> bool {
        if self.keyless().is_some_and(|it| it.given_back.len() >= KEPT) {
            self.forget_who_has_begun();
        }
        let keyless = self.keyless_mut();
        let given = keyless.given_back.entry(execution_id);
        let given = given.or_insert_with(|| GivenBack {
            key: Arc::clone(&key),
            worker,
            at: now,
            times: 0,
        });
        (given.key, given.worker, given.at) = (key, worker, now);
        given.times += 1;
        keyless.last = Some(execution_id);
        keyless.in_row += 1;
        if keyless.until.is_some() || keyless.in_row <= lives.max(1) {
            return false;
        }
        keyless.until = Some(now + keyless.rest);
        keyless.rest = (keyless.rest * 2).min(LONGEST_REST);
        true
    }

    /// Drops those that need not be remembered any more, and where that is nobody, the oldest.
    fn forget_who_has_begun(&mut self) {
        let stale: Vec<ExecutionId> = self.given_back().map(|(id, _)| id).collect();
        let keyless = self.keyless_mut();
        keyless
            .given_back
            .retain(|id, _| stale.binary_search(id).is_ok());
        while keyless.given_back.len() >= KEPT {
            keyless.given_back.pop_first();
        }
    }

    /// Somebody has begun: some worker has what it takes.
    pub(super) fn note_begun(&mut self, execution_id: ExecutionId) {
        let Some(keyless) = self.keyless_if_any() else {
            return;
        };
        keyless.given_back.remove(&execution_id);
        (keyless.in_row, keyless.rest, keyless.until) = (0, FIRST_REST, None);
        if keyless.given_back.is_empty() {
            self.forget_keyless();
        }
    }

    /// Until when it rests because its workers lack a key.
    pub(super) fn rests_until(&self) -> Option<Millis> {
        self.keyless()?.until
    }

    /// Ends the rest whose time is over.
    pub(super) fn end_rest(&mut self, now: Millis) {
        if self.rests_until().is_some_and(|until| until <= now) {
            self.rest_no_more();
        }
    }

    /// Ends the rest: there are other workers now.
    pub(crate) fn rest_no_more(&mut self) {
        if let Some(keyless) = self.keyless_if_any() {
            keyless.until = None;
        }
    }

    /// Those that were given back, and have neither begun since nor left.
    fn given_back(&self) -> impl Iterator<Item = (ExecutionId, &GivenBack)> {
        let given_back = self.keyless().into_iter().flat_map(|it| &it.given_back);
        let given_back = given_back.map(|(id, given)| (*id, given));
        given_back.filter(|(id, _)| self.has_not_begun(*id))
    }

    fn has_not_begun(&self, id: ExecutionId) -> bool {
        let holder = self.holder(id);
        holder.map_or_else(|| self.is_waiting(id.seq()), |holder| !holder.started)
    }

    /// The keys that workers lack, for those who look at its figures.
    pub(super) fn lacks_key(&self) -> Option<LacksKey> {
        // Nearly no queue has any.
        self.keyless()?;
        let executions = self.given_back().count() as u64;
        let (_, last) = self.given_back().max_by_key(|(_, given)| given.at)?;
        Some(LacksKey {
            key: last.key.to_string(),
            worker: last.worker,
            last_at: time(last.at),
            executions,
        })
    }

    /// That an execution waits for its key: it was given back for want of it, and has not begun since.
    pub(super) fn waits_for_its_key(&self, id: ExecutionId) -> Option<Reason> {
        let keyless = self.keyless()?;
        let given = keyless.given_back.get(&id);
        let given = given.filter(|_| self.has_not_begun(id))?;
        Some(keyless.reason(given, given.times))
    }

    /// The same, or that its queue rests because of what stands before it.
    pub(super) fn waits_for_key(&self, id: ExecutionId) -> Option<Reason> {
        let of_others = || {
            let keyless = self.keyless().filter(|it| it.until.is_some())?;
            let given = keyless.given_back.get(&keyless.last?)?;
            Some(keyless.reason(given, 0))
        };
        self.waits_for_its_key(id).or_else(of_others)
    }
}

#[cfg(test)]
#[path = "keyless_tests.rs"]
mod tests;
