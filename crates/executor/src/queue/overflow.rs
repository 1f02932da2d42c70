//! What a newcomer leads to when a limit is reached or the queue is full: it waits, it is refused, or
//! others end in its place. All of it is one decision.

use attune_core::policy::{OnFull, OnLimit};
use attune_core::{Attempt, Bug, Demand, EndCode, ExecutionId, Priority, Seq};

use super::action_queue::ActionQueue;
use super::entry::{Blocked, Millis, QueueFull, Waiting};
use super::load::Load;

/// Somebody new, of whom it is not known yet whether it comes in.
#[derive(Debug, Clone, Copy)]
pub struct Newcomer<'a> {
    /// Its priority.
    pub priority: Priority,
    /// How it would wait.
    pub waiting: Waiting,
    /// What it demands, where executions demand different things.
    pub demand: Option<&'a Demand>,
    /// When it may start, if that is later. Its time has not come then: no limit concerns it yet.
    pub not_before: Option<Millis>,
    /// How many of its group who wait may end in its place.
    pub most_replaced: usize,
}

/// What became of a queue by a newcomer that came in.
#[derive(Debug, Default)]
pub struct Arrival {
    /// How many stand before it.
    pub before: u64,
    /// Who waited and has ended in its place, and why.
    pub gone: Vec<(Waiting, EndCode)>,
    /// Who holds a slot and is asked to end.
    pub asked: Vec<(ExecutionId, Attempt)>,
}

/// Why a newcomer does not come in. Nothing is changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// As many wait as may.
    #[error(transparent)]
    Full(#[from] QueueFull),
    /// The limit of the action is reached.
    #[error("the limit of {limit} is reached")]
    Limit {
        /// How many may hold a slot.
        limit: u32,
    },
    /// The limit of its group is reached.
    #[error("the limit of {limit} for its group is reached")]
    GroupLimit {
        /// How much the holders of a group may take.
        limit: u32,
    },
    /// As many of its user wait or hold a slot as may.
    #[error("{limit} executions of its user wait or hold a slot already")]
    User {
        /// How many of a user may.
        limit: u32,
    },
}

impl ActionQueue {
    /// Takes a newcomer in, as the policy says, or says why it does not come in.
    ///
    /// # Errors
    /// [`Refused`]; nothing is changed then.
    pub fn arrive(&mut self, newcomer: &Newcomer<'_>) -> Result<Arrival, Refused> {
        let Newcomer {
            priority,
            waiting,
            demand,
            not_before,
            ..
        } = *newcomer;
        if self.meters.is_some() {
            self.pass(waiting.enqueued_at);
        }
        let (gone, asked) = match self.limits.overflows() {
            false => (Vec::new(), Vec::new()),
            true => (self.who_goes(newcomer)?, self.who_is_asked(newcomer)),
        };
        if gone.is_empty() {
            let before = match not_before {
                Some(time) => self.enter_delayed(priority, waiting, demand, time)?,
                None => self.enter(priority, waiting, demand)?,
            };
            return Ok(Arrival {
                before,
                gone: Vec::new(),
                asked: self.ask(asked),
            });
        }
        let take = |(seq, code): (Seq, EndCode)| Some((self.cancel_waiting(seq)?, code));
        let gone = gone.into_iter().filter_map(take).collect();
        let before = match not_before {
            Some(time) => self.join_delayed(priority, waiting, demand, time),
            None => self.join(priority, waiting, demand),
        };
        let asked = self.ask(asked);
        Ok(Arrival {
            before,
            gone,
            asked,
        })
    }

    /// Who ends so that a newcomer can wait.
    fn who_goes(&self, newcomer: &Newcomer<'_>) -> Result<Vec<(Seq, EndCode)>, Refused> {
        let (on_limit, demand) = (self.limits.on_limit(), newcomer.demand);
        let is_due = newcomer.not_before.is_none();
        let has_room = is_due && self.starts_now(newcomer.priority, &newcomer.waiting, demand);
        // While some are due and asleep nobody is granted a slot: they may stand before it. No limit
        // makes it wait then.
        let starts = has_room && !self.has_due(newcomer.waiting.enqueued_at);
        if on_limit == OnLimit::Reject && is_due && !has_room {
            self.check_limits(demand)?;
        }
        let mut gone = Vec::new();
        // The latest wins whether it has to wait or not: none that came before it is to run after it.
        // A next try that is due goes first, and may take the start that its rate had left.
        let is_first = starts && self.first_kept(newcomer.waiting.enqueued_at).is_none();
        let replaces = on_limit == OnLimit::CancelRunning || !is_first;
        if let Some(load) = self.load.as_ref().filter(|_| is_due && replaces)
            && let Some(rivals) = &load.rivals
            && let Some(group) = load.rivalry_of(demand)
        {
            let rivals = rivals.waiting(group).take(newcomer.most_replaced);
            gone.extend(rivals.map(|seq| (seq, EndCode::Replaced)));
        }
        if !starts && self.len() - gone.len() >= self.limits.max_length as usize {
            let oldest = self.who_is_dropped(newcomer.priority);
            let full = QueueFull {
                max_length: self.limits.max_length,
            };
            gone.push((oldest.ok_or(full)?, EndCode::Dropped));
        }
        self.check_user(newcomer, &gone)?;
        Ok(gone)
    }

    /// Who makes room in a full queue for somebody of this priority.
    fn who_is_dropped(&self, priority: Priority) -> Option<Seq> {
        if self.limits.on_full() != OnFull::DropOldest {
            return None;
        }
        let order = &self.load.as_ref()?.order;
        if Bug::DropNewest.is_planted() {
            return order.iter().map(|waiting| waiting.seq).max();
        }
        order.first_to_drop(self.limits.order, priority)
    }

    /// Whether somebody who comes now would have to wait because of a limit. Another reason is none to
    /// refuse it.
    fn check_limits(&self, demand: Option<&Demand>) -> Result<(), Refused> {
        let Some(load) = self.load.as_deref().filter(|_| !self.is_stopped()) else {
            return Ok(());
        };
        let of_action = |limit| Err(Refused::Limit { limit });
        let Some(groups) = &load.groups else {
            // Who waits will have a slot before it, unless it is its rate that it waits for.
            let waiting = match self.without_rate() {
                Some(Blocked::Rate { .. }) => 0,
                _ => load.order.len(),
            };
            let taken = load.active.len() + waiting;
            let limit = self.limits.max_concurrent;
            return match limit.filter(|limit| taken >= *limit as usize) {
                Some(limit) => of_action(limit),
                None => Ok(()),
            };
        };
        let Some(demand) = demand.filter(|_| groups.unknown().is_empty()) else {
            return Ok(());
        };
        let of_group = |limit| Err(Refused::GroupLimit { limit });
        if let Some(limit) = self.limits.group_limit()
            && !groups.group_has_room(&self.limits, demand)
        {
            return of_group(limit);
        }
        match self.limits.max_concurrent {
            Some(limit) if !groups.has_room(&self.limits, demand.cost) => return of_action(limit),
            _ => {}
        }
        // There is room for it, and it would go before somebody for whom there is none.
        match (self.without_room(load), self.limits.group_limit()) {
            (Some(Blocked::Limit { limit }), _) => of_action(limit),
            (Some(Blocked::Groups), Some(limit)) if groups.has_line(demand) => of_group(limit),
            _ => Ok(()),
        }
    }

    /// Whether its user may have one more.
    fn check_user(&self, newcomer: &Newcomer<'_>, gone: &[(Seq, EndCode)]) -> Result<(), Refused> {
        let user = newcomer.demand.and_then(|demand| demand.user);
        let groups = self.load.as_ref().and_then(|load| load.groups.as_ref());
        let (Some(limit), Some(user), Some(groups)) = (self.limits.per_user(), user, groups) else {
            return Ok(());
        };
        let partition = newcomer.waiting.execution_id.partition();
        let own = gone.iter().filter(|(seq, _)| {
            let id = ExecutionId::new(partition, *seq);
            groups.users().of(id) == Some(user)
        });
        let left = groups.users().count(user) as usize - own.count();
        match left >= limit as usize {
            true => Err(Refused::User { limit }),
            false => Ok(()),
        }
    }

    /// Who is asked to end so that there is room for a newcomer: the oldest of its group, as many as it
    /// takes beside those that are asked already. Nobody where it could not start all the same.
    fn who_is_asked(&self, newcomer: &Newcomer<'_>) -> Vec<ExecutionId> {
        let is_due = newcomer.not_before.is_none();
        if self.limits.on_limit() != OnLimit::CancelRunning || !is_due || self.is_stopped() {
            return Vec::new();
        }
        let load = self.load.as_deref();
        let load = load.and_then(|load| Some((load, load.rivals.as_ref()?)));
        let Some((load, rivals)) = load else {
            return Vec::new();
        };
        let Some(group) = load.rivalry_of(newcomer.demand) else {
            return Vec::new();
        };
        let mut freed = rivals.ending(group);
        let mut asked = Vec::new();
        for id in rivals.holding(group) {
            if self.would_fit(load, newcomer.demand, freed) {
                break;
            }
            let Some(holder) = load.active.get(id) else {
                continue;
            };
            freed += u64::from(holder.share.cost);
            asked.push(id);
        }
        asked
    }

    /// Whether there is room for somebody once others of its group have freed so much.
    fn would_fit(&self, load: &Load, demand: Option<&Demand>, freed: u64) -> bool {
        match (&load.groups, demand) {
            (Some(groups), Some(demand)) => groups.would_fit(&self.limits, demand, freed),
            _ => {
                let left = (load.active.len() as u64).saturating_sub(freed);
                let limit = self.limits.max_concurrent;
                limit.is_none_or(|limit| left < u64::from(limit))
            }
        }
    }

    /// Asks those who hold a slot to end.
    fn ask(&mut self, who: Vec<ExecutionId>) -> Vec<(ExecutionId, Attempt)> {
        let ask = |id| Some((id, self.request_cancel(id)?));
        who.into_iter().filter_map(ask).collect()
    }
}

#[cfg(test)]
#[path = "overflow_model.rs"]
mod model;

#[cfg(test)]
#[path = "overflow_tests.rs"]
mod tests;
