//! Who comes into a queue.

use attune_core::{Demand, Priority};

use super::action_queue::ActionQueue;
use super::entry::{Millis, QueueFull, Waiting};

impl ActionQueue {
    /// A new execution joins the end of its priority. Tells how many stand before it. Where executions
    /// demand different things, `demand` is what this one does.
    ///
    /// # Errors
    /// [`QueueFull`] when it would have to wait and too many do; nothing is changed then.
    pub fn enter(
        &mut self,
        priority: Priority,
        waiting: Waiting,
        demand: Option<&Demand>,
    ) -> Result<u64, QueueFull> {
        if self.meters.is_some() {
            self.pass(waiting.enqueued_at);
        }
        if !self.starts_now(priority, &waiting, demand) {
            self.check_room()?;
        }
        Ok(self.join(priority, waiting, demand))
    }

    /// The same, whatever the bound.
    pub(super) fn join(
        &mut self,
        priority: Priority,
        mut waiting: Waiting,
        demand: Option<&Demand>,
    ) -> u64 {
        self.totals.enqueued += 1;
        let (limits, load) = self.parts();
        let order = &load.order;
        let before = order.before_newest(limits.order, priority, waiting.enqueued_at);
        let before = before + load.ahead_before(limits, priority, &waiting) as u64;
        waiting.share = load.share(limits, waiting.execution_id, demand);
        load.wait(limits, priority, waiting);
        before
    }

    /// A new execution enters that may not start before `not_before`. Tells how many wait.
    ///
    /// # Errors
    /// [`QueueFull`] as for [`enter`](Self::enter).
    pub fn enter_delayed(
        &mut self,
        priority: Priority,
        waiting: Waiting,
        demand: Option<&Demand>,
        not_before: Millis,
    ) -> Result<u64, QueueFull> {
        self.check_room()?;
        Ok(self.join_delayed(priority, waiting, demand, not_before))
    }

    /// The same, whatever the bound.
    pub(super) fn join_delayed(
        &mut self,
        priority: Priority,
        mut waiting: Waiting,
        demand: Option<&Demand>,
        not_before: Millis,
    ) -> u64 {
        self.totals.enqueued += 1;
        let before = self.len() as u64;
        let (limits, load) = self.parts();
        waiting.share = load.share(limits, waiting.execution_id, demand);
        load.put_off(priority, waiting, not_before);
        before
    }

    fn check_room(&self) -> Result<(), QueueFull> {
        let max_length = self.limits.max_length;
        if self.len() >= max_length as usize {
            Err(QueueFull { max_length })
        } else {
            Ok(())
        }
    }

    /// Whether somebody who enters now can be granted a slot at once.
    pub(super) fn starts_now(
        &self,
        priority: Priority,
        waiting: &Waiting,
        demand: Option<&Demand>,
    ) -> bool {
        if self.is_stopped() || self.limits.max_concurrent == Some(0) {
            return false;
        }
        if !self.may_start(demand) {
            return false;
        }
        let Some(load) = self.load.as_deref() else {
            return true;
        };
        match &load.groups {
            None => load.order.is_empty() && self.without_room(load).is_none(),
            Some(_) if self.has_line(load) => false,
            Some(groups) => demand.is_some_and(|demand| {
                let key = self.limits.order.key(priority, waiting.enqueued_at);
                groups.is_open(&self.limits, demand, (key, waiting.seq))
            }),
        }
    }
}
