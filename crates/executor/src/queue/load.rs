//! Who waits and who holds a slot, in the order and in the groups of an action.

use std::cell::Cell;
use std::collections::BTreeSet;

use attune_core::{Attempt, Demand, ExecutionId, Priority, Seq};

use super::ahead::Ahead;
use super::delayed::Delayed;
use super::entry::{Holder, Millis, Waiting};
use super::holders::Holders;
use super::keeping::Kept;
use super::rivals::{Rivalry, Rivals};
use crate::policy::{Groups, Member, Order, QueueLimits, Share, Users};

/// Who waits and who holds a slot.
#[derive(Debug, Clone, Default)]
pub(super) struct Load {
    pub(super) order: Order,
    pub(super) delayed: Delayed,
    /// Who is granted: whoever holds a slot, and whoever stands ahead of one.
    pub(super) active: Holders,
    /// There while somebody stands ahead, and as long as it is known how many may.
    pub(super) ahead: Option<Box<Ahead>>,
    /// There where executions demand different things.
    pub(super) groups: Option<Box<Groups>>,
    /// There where a newcomer takes the place of others.
    pub(super) rivals: Option<Box<Rivals>>,
    /// There while somebody keeps its slot between two tries.
    pub(super) kept: Option<Box<Kept>>,
}

thread_local! {
    /// What is left of the load of the queue that became idle last on this thread: nobody, and room in memory
    /// for the next queue that is used. Most queues have one execution at a time, and what a load is made
    /// of would be allocated and freed for each.
    static SPARE: Cell<Option<Box<Load>>> = const { Cell::new(None) };
}

/// Of whose rivals somebody is who takes this.
fn rivalry(groups: &Option<Box<Groups>>, share: Share) -> Rivalry {
    groups.as_ref()?.key_of(share.group)
}

impl Load {
    /// Nobody, in a queue with these bounds.
    pub(super) fn boxed(limits: &QueueLimits) -> Box<Self> {
        let mut load = SPARE.take().unwrap_or_default();
        let groups = |_| Box::new(Groups::new(limits, BTreeSet::new(), Users::default()));
        load.groups = limits.demands().map(groups);
        load.rivals = limits.on_limit().replaces().then(Box::default);
        load
    }

    /// Its queue is idle and needs it no longer: keeps its memory for the next queue, unless it is much.
    pub(super) fn retire(mut self: Box<Self>) {
        if !self.order.is_small() {
            return;
        }
        // Nobody waits or holds a slot, and of those who did nothing is kept; `boxed` fills the rest.
        (self.delayed, self.active) = Default::default();
        (self.ahead, self.groups, self.rivals, self.kept) = Default::default();
        SPARE.set(Some(self));
    }

    /// What an execution takes of the limits.
    pub(super) fn share(
        &mut self,
        limits: &QueueLimits,
        id: ExecutionId,
        demand: Option<&Demand>,
    ) -> Share {
        let Some(groups) = &mut self.groups else {
            return Share::default();
        };
        groups.share(id, demand, limits.demands())
    }

    /// Somebody waits for a slot from now on.
    pub(super) fn wait(&mut self, limits: &QueueLimits, priority: Priority, waiting: Waiting) {
        let enqueued_at = self.order.insert(priority, waiting);
        if let Some(rivals) = &mut self.rivals {
            rivals.wait(rivalry(&self.groups, waiting.share), waiting.seq);
        }
        if let Some(groups) = &mut self.groups {
            let member = Member {
                lane: waiting.lane(priority),
                seq: waiting.seq,
                cost: waiting.share.cost,
                enqueued_at,
            };
            groups.wait(limits, waiting.share.group, member);
        }
    }

    /// Somebody waits for a time first.
    pub(super) fn put_off(&mut self, priority: Priority, waiting: Waiting, not_before: Millis) {
        self.delayed.insert(priority, waiting, not_before);
        // Who is to be tried again is older than whoever comes now; a start that was asked for a later
        // time is not.
        if let Some(rivals) = self
            .rivals
            .as_mut()
            .filter(|_| waiting.attempt > Attempt(0))
        {
            rivals.wait(rivalry(&self.groups, waiting.share), waiting.seq);
        }
    }

    /// Somebody who waited for a slot is gone.
    pub(super) fn let_go(
        &mut self,
        limits: &QueueLimits,
        (priority, waiting): (Priority, Waiting),
    ) {
        if let Some(rivals) = &mut self.rivals {
            rivals.stop_waiting(rivalry(&self.groups, waiting.share), waiting.seq);
        }
        if let Some(groups) = &mut self.groups {
            let group = waiting.share.group;
            groups.stop_waiting(limits, group, (waiting.lane(priority), waiting.seq));
            groups.leave(waiting.execution_id, group);
        }
    }

    /// Takes out somebody who waits for a time.
    pub(super) fn take_delayed(&mut self, seq: Seq) -> Option<Waiting> {
        let waiting = self.delayed.remove(seq)?;
        if let Some(rivals) = &mut self.rivals {
            rivals.stop_waiting(rivalry(&self.groups, waiting.share), seq);
        }
        if let Some(groups) = &mut self.groups {
            groups.leave(waiting.execution_id, waiting.share.group);
        }
        Some(waiting)
    }

    /// Somebody who stood in a lane, and does no longer, is granted a slot.
    pub(super) fn grant(
        &mut self,
        limits: &QueueLimits,
        (id, lane): (ExecutionId, Option<Priority>),
        holder: Holder,
    ) {
        self.active.insert(id, holder);
        if let Some(rivals) = &mut self.rivals {
            rivals.hold(rivalry(&self.groups, holder.share), id, &holder);
        }
        if let Some(groups) = &mut self.groups {
            groups.grant(limits, holder.share, (lane, holder.seq));
        }
    }

    /// Somebody holds a slot from now on.
    pub(super) fn hold(&mut self, limits: &QueueLimits, id: ExecutionId, holder: Holder) {
        self.active.insert(id, holder);
        if let Some(rivals) = &mut self.rivals {
            rivals.hold(rivalry(&self.groups, holder.share), id, &holder);
        }
        if let Some(groups) = &mut self.groups
            && !holder.is_ahead()
        {
            groups.take(limits, holder.share);
        }
    }

    /// How many hold a slot.
    pub(super) fn slots(&self) -> usize {
        self.active.len() - self.ahead_count()
    }

    /// How many stand ahead of one.
    pub(super) fn ahead_count(&self) -> usize {
        self.ahead.as_ref().map_or(0, |ahead| ahead.len())
    }

    /// Takes the slot from whoever holds it; it is in its group still.
    pub(super) fn give_back(&mut self, limits: &QueueLimits, id: ExecutionId) -> Option<Holder> {
        let holder = self.active.remove(id)?;
        if holder.is_ahead()
            && let Some(ahead) = &mut self.ahead
        {
            ahead.remove(id);
        }
        if let Some(kept) = &mut self.kept {
            kept.remove(id);
            self.kept.take_if(|kept| kept.is_empty());
        }
        if let Some(rivals) = &mut self.rivals {
            rivals.give_back(rivalry(&self.groups, holder.share), id, &holder);
        }
        if let Some(groups) = &mut self.groups
            && !holder.is_ahead()
        {
            groups.give_back(limits, holder.share);
        }
        Some(holder)
    }

    /// Marks a holder as to be ended; tells which attempt it holds its slot in.
    pub(super) fn ask(&mut self, id: ExecutionId) -> Option<Attempt> {
        let holder = self.active.get_mut(id)?;
        if !std::mem::replace(&mut holder.cancel_requested, true)
            && let Some(rivals) = &mut self.rivals
        {
            rivals.ask(rivalry(&self.groups, holder.share), id, holder);
        }
        Some(holder.attempt)
    }

    /// Takes the slot from whoever holds it, and forgets it.
    pub(super) fn release(&mut self, limits: &QueueLimits, id: ExecutionId) -> Option<Holder> {
        let holder = self.give_back(limits, id)?;
        if let Some(groups) = &mut self.groups {
            groups.leave(id, holder.share.group);
        }
        Some(holder)
    }

    /// Of whose rivals somebody would be who demands this; `None` while it is not known who is.
    pub(super) fn rivalry_of(&self, demand: Option<&Demand>) -> Option<Rivalry> {
        match &self.groups {
            None => Some(None),
            Some(groups) => {
                let is_known = groups.unknown().is_empty();
                demand.filter(|_| is_known).map(|it| Some(it.group))
            }
        }
    }

    /// Somebody's group is known from now on.
    pub(super) fn assign(&mut self, id: ExecutionId, share: Share) {
        let rivalry = rivalry(&self.groups, share);
        if let Some(rivals) = &mut self.rivals {
            rivals.assign(id.seq(), rivalry);
        }
        let Some(holder) = self.active.get_mut(id) else {
            return;
        };
        holder.share = share;
        if let Some(rivals) = &mut self.rivals {
            rivals.give_back(None, id, holder);
            rivals.hold(rivalry, id, holder);
        }
    }

    /// Finds out who is whose rival, because that was of no interest before, or their groups were others.
    pub(super) fn find_rivals(&mut self, limits: &QueueLimits) {
        self.rivals = limits.on_limit().replaces().then(|| {
            let mut rivals = Rivals::default();
            let tried = |waiting: &Waiting| waiting.attempt > Attempt(0);
            let waiting = self.order.iter().chain(self.delayed.iter().filter(tried));
            for waiting in waiting {
                rivals.wait(rivalry(&self.groups, waiting.share), waiting.seq);
            }
            for (id, holder) in self.active.iter() {
                rivals.hold(rivalry(&self.groups, holder.share), id, holder);
            }
            Box::new(rivals)
        });
    }

    /// Executions demand by another rule from now on: nobody's group is known. Whose they are is, where it
    /// was.
    pub(super) fn regroup(&mut self, limits: &QueueLimits) {
        self.order.forget_shares();
        self.delayed.forget_shares();
        let holders = self.active.values_mut();
        holders.for_each(|holder| holder.share = Share::default());
        let earlier = self.groups.take();
        self.groups = limits.demands().map(|_| {
            let users = earlier.map_or_else(Default::default, |groups| groups.into_users());
            let waiting = self.order.iter().chain(self.delayed.iter());
            let waiting = waiting.map(|waiting| waiting.execution_id);
            let all = waiting.chain(self.active.iter().map(|(id, _)| id));
            Box::new(Groups::new(limits, all.collect(), users))
        });
    }
}
