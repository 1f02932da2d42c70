//! Slots that stay free for long while somebody waits (I6), by the clock.
//!
//! `queue` judges what is left at the end of a round that touched a queue. A queue that no round
//! touches, or whose owner does not say how it left it, is judged here: in the time of one owner,
//! who surely lives, nobody waits for [`PATIENCE`] of calm while a slot is free all along. Calm is
//! what it is for `rounds`.
//!
//! Who waits and who holds a slot is taken from the decisions, as in `queue`; delayed executions are
//! left out, because no record says when their time has come. The limit is what the owner last
//! said of it in its epoch; before that, the lowest that can be in force by what the API was asked
//! for, or nothing is judged. A limit of 0 pauses the action: no slot is ever free. A pool is open, and
//! a queue held by nobody, until the owner says that it is not: it says so of every action of a pool
//! that it closes, and of every queue that operators hold. An
//! owner that has just granted as many as one step may is given time anew.

use std::collections::{BTreeMap, HashSet};

use attune_core::{ActionId, ExecutionId, Priority, Status};

use super::asked::Limits;
use super::decision::{Decision, What};
use super::facts::Facts;
use super::processes::Tenure;
use super::queue::STEP;
use super::rounds::PATIENCE;
use super::times::due;
use super::{Judged, Promise, Violation, violation};

pub(super) fn judge(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    let troubles = facts.processes.troubles();
    let tenures = facts.processes.tenures();
    let limits = Limits::of(&facts.asked);
    for (action_id, decisions) in &facts.decisions {
        // Who waits may lack room in the limit of its group, and then nobody's slot is free for it.
        let is_grouped = |decision: &Decision| match &decision.what {
            What::Bounds(bounds, _) | What::Granted(_, bounds, ..) => bounds.demands.is_some(),
            _ => false,
        };
        if decisions.iter().any(is_grouped) {
            continue;
        }
        let partition = facts.partition_of(*action_id);
        let Some(tenures) = partition.and_then(|partition| tenures.get(&partition)) else {
            continue;
        };
        let mut decisions: Vec<&Decision> = decisions.iter().collect();
        decisions.sort_unstable_by_key(|decision| (decision.epoch, decision.record));
        let mut rest = &decisions[..];
        let mut waiting = BTreeMap::new();
        for tenure in tenures {
            let (of_it, later) =
                rest.split_at(rest.partition_point(|decision| decision.epoch <= tenure.epoch));
            rest = later;
            judged.calms += u64::from(due(tenure.began, PATIENCE, *tenure, &troubles).is_some());
            let mut slots = Slots {
                facts,
                limits: &limits,
                troubles: &troubles,
                action_id: *action_id,
                tenure: *tenure,
                now: tenure.began,
                holders: HashSet::new(),
                waiting,
                limit: None,
                held_up: false,
                granted: 0,
                free_since: None,
                found: None,
            };
            slots.begin();
            for decision in of_it {
                if decision.t_ns > slots.now {
                    slots.look();
                    slots.now = decision.t_ns;
                }
                slots.apply(&decision.what);
            }
            slots.look();
            slots.judge_all(tenure.sure_until);
            broken.extend(slots.found);
            waiting = slots.waiting;
        }
    }
}

/// The slots of one action in the time of one owner.
struct Slots<'a> {
    facts: &'a Facts,
    limits: &'a Limits,
    troubles: &'a [(i64, i64)],
    action_id: ActionId,
    tenure: Tenure,
    now: i64,
    holders: HashSet<ExecutionId>,
    /// Who waits for sure, and since when.
    waiting: BTreeMap<(Priority, ExecutionId), i64>,
    /// The limit, once the owner has named it.
    limit: Option<Option<u32>>,
    held_up: bool,
    /// Grants at this moment.
    granted: u32,
    /// Since when a slot has been free all along.
    free_since: Option<i64>,
    /// The first that was wrong: the rest of it follows.
    found: Option<Violation>,
}

impl Slots<'_> {
    /// Who waited for the owner before waits for this one, where a later record shows that the
    /// record of how it left the queue is not lost.
    fn begin(&mut self) {
        let (facts, now) = (self.facts, self.now);
        self.waiting.retain(|(_, id), since| {
            *since = now;
            facts.execution(*id).is_some_and(|known| known.leaves)
        });
    }

    fn apply(&mut self, what: &What) {
        match what {
            What::Accepted(id, status) => {
                let known = self.facts.execution(*id);
                let waits = known.is_some_and(|known| !known.delayed);
                if waits && *status != Status::Rejected {
                    self.wait(*id);
                }
            }
            What::Held((id, _), _) | What::HandedOn((id, _)) => {
                self.leave(*id);
                self.holders.insert(*id);
            }
            // Whoever has its slot next stands nowhere else.
            What::Ahead((id, _), _) => self.leave(*id),
            What::Granted((id, _), bounds, ..) => {
                self.leave(*id);
                self.holders.insert(*id);
                self.granted += 1;
                self.limit = Some(bounds.limit);
            }
            What::Ended((id, _), _, _) => {
                self.leave(*id);
                self.holders.remove(id);
            }
            What::Revoked((id, attempt), not_before) => {
                self.holders.remove(id);
                if not_before.is_none() && self.facts.grants.contains_key(&(*id, attempt.next())) {
                    self.wait(*id);
                }
            }
            What::Bounds(bounds, _) => self.limit = Some(bounds.limit),
            What::Totals { held_up, .. } => self.held_up = *held_up,
            // Of what is grouped nothing is judged here, and who keeps a slot holds it.
            What::Moved(..) | What::Grouped(..) | What::Kept(..) => {}
        }
    }

    fn place(&self, id: ExecutionId) -> Option<(Priority, ExecutionId)> {
        Some((self.facts.execution(id)?.priority?, id))
    }

    fn wait(&mut self, id: ExecutionId) {
        if let Some(place) = self.place(id) {
            self.waiting.insert(place, self.now);
        }
    }

    fn leave(&mut self, id: ExecutionId) {
        let place = self.place(id);
        if let Some(since) = place.and_then(|place| self.waiting.remove(&place)) {
            self.judge(id, since, self.now);
        }
    }

    /// Everything of this moment is applied.
    fn look(&mut self) {
        let named = self.limit.map(|limit| limit.unwrap_or(u32::MAX));
        let least = || {
            let (from, to) = (self.tenure.began, self.now);
            self.limits.least(self.action_id, from, to)
        };
        let limit = named.or_else(least).unwrap_or(0);
        let is_free = self.holders.len() < limit as usize && !self.held_up;
        let goes_on = std::mem::take(&mut self.granted) >= STEP;
        if !is_free || goes_on {
            self.judge_all(self.now);
            self.free_since = None;
        }
        if is_free {
            self.free_since.get_or_insert(self.now);
        }
    }

    fn judge_all(&mut self, until: i64) {
        if self
            .free_since
            .is_some_and(|since| until - since >= PATIENCE)
        {
            let waiting: Vec<_> = self.waiting.iter().map(|(at, t)| (at.1, *t)).collect();
            for (id, since) in waiting {
                self.judge(id, since, until);
            }
        }
    }

    fn judge(&mut self, id: ExecutionId, since: i64, until: i64) {
        let Some(from) = self.free_since.map(|free| free.max(since)) else {
            return;
        };
        let due = due(from, PATIENCE, self.tenure, self.troubles);
        if self.found.is_some() || due.is_none_or(|due| due >= until) {
            return;
        }
        let what = format!(
            "a slot of action {} was free for {} s of calm while execution {id} waited for it",
            self.action_id,
            PATIENCE / 1_000_000_000,
        );
        let records = self.facts.execution(id).and_then(|known| known.accepted);
        self.found = Some(violation(Promise::I6, what, records));
    }
}
