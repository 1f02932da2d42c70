//! Who is granted to a worker ahead of its slot.
//!
//! *I3.* Whoever is granted ahead is the next in order, and gets its slot before whoever was granted ahead later, and
//! before all who wait.
//!
//! *I2.* It is handed a slot that is free, and goes to the worker of all those that are held.
//!
//! *I6.* At the end of a round no slot is free while somebody stands ahead of it.

use super::*;

impl Replay<'_> {
    /// Somebody is granted ahead of its slot, or was before this owner came.
    pub(super) fn stand_ahead(
        &mut self,
        record: u32,
        (id, attempt): Key,
        granted: Option<(Bounds, OrderRule)>,
    ) {
        match granted {
            Some((bounds, rule)) => {
                self.next_in_order(record, id, bounds, rule);
                self.judge_worker(record, (id, attempt));
            }
            None => drop(self.leave(id)),
        }
        // Whoever was granted before this owner came is handed its slot by the grants, too, and not as it was found.
        // Nobody has noted a grant whose commit was stored without an answer: it is only found.
        let grant = self.facts.grants.get(&(id, attempt));
        let grant_no = grant.map(|grant| grant.grant_no);
        let ahead = (attempt, grant_no, record);
        if let Some((other, _, before)) = self.ahead.insert(id, ahead) {
            let what = format!("execution {id} is granted ahead, and is so in attempt {other}");
            self.break_promise(Promise::I5, what, [before, record]);
        }
    }

    /// A worker can hand on slots of its own alone.
    fn judge_worker(&mut self, record: u32, key: Key) {
        let worker = |key: &Key| self.facts.grants.get(key).and_then(|grant| grant.worker);
        let Some(own) = worker(&key) else { return };
        let held = self.holders.iter().map(|(id, held)| (*id, *held));
        let ahead = self.ahead.iter();
        let ahead = ahead.map(|(id, (attempt, _, record))| (*id, (*attempt, *record)));
        let elsewhere = held.chain(ahead).filter_map(|(id, (attempt, record))| {
            let other = worker(&(id, attempt))?;
            (other != own).then_some(record)
        });
        if let Some(other) = elsewhere.min() {
            let id = key.0;
            let what =
                format!("execution {id} is granted ahead to a worker that has not all slots");
            self.break_promise(Promise::I2, what, [other, record]);
        }
    }

    /// Whoever stood ahead of a slot has it.
    pub(super) fn hand_on(&mut self, record: u32, (id, attempt): Key) {
        match self.ahead.remove(&id) {
            Some((granted, grant_no, _)) if granted == attempt => {
                let mut others = self.ahead.iter();
                let earlier = others.find(|(_, (_, other, _))| {
                    other.zip(grant_no).is_some_and(|(other, own)| other < own)
                });
                if let Some((other, (.., before))) = earlier.map(|(id, it)| (*id, *it)) {
                    let what = format!("execution {id} was handed a slot before {other}");
                    self.break_promise(Promise::I3, what, [before, record]);
                }
            }
            _ => {
                let what =
                    format!("execution {id} was handed a slot that it did not stand ahead of");
                self.break_promise(Promise::I5, what, [record]);
            }
        }
        // A limit that was raised since is not said here.
        let bounds = self.bounds.unwrap_or_default();
        self.hold(record, (id, attempt), bounds);
    }

    /// A slot is given to somebody else than to whoever stands ahead of one.
    pub(super) fn nobody_is_ahead(&mut self, record: u32, id: ExecutionId) {
        if let Some((other, (.., before))) = self.ahead.first_key_value() {
            let what = format!("execution {id} was given a slot, and {other} stands ahead of it");
            let records = [*before, record];
            self.break_promise(Promise::I3, what, records);
        }
    }

    /// Whoever stands ahead while a slot is free: the first, where all of them surely have room in all their limits.
    pub(super) fn lacks_a_slot(&self, bounds: Bounds) -> Option<ExecutionId> {
        let first = self.ahead.keys().next().copied()?;
        let (used, _) = self.used(None);
        if bounds.demands.is_none() {
            let is_free = bounds.limit.is_none_or(|limit| used < u64::from(limit));
            return is_free.then_some(first);
        }
        let has_room = |id: &ExecutionId| {
            let (_, used_of_group) = self.used(self.group(*id));
            self.demand(*id).is_some_and(|demand| {
                let fits = |used: u64, limit: Option<u32>| {
                    limit.is_none_or(|limit| used + u64::from(demand.cost) <= u64::from(limit))
                };
                fits(used, bounds.limit) && fits(used_of_group, bounds.group_limit)
            })
        };
        let is_sure = self.holders.keys().all(|id| self.demand(*id).is_some());
        (is_sure && self.ahead.keys().all(has_room)).then_some(first)
    }
}

#[cfg(test)]
#[path = "ahead_tests.rs"]
mod tests;
