//! When a change that somebody asked for is in force: where executions have to come back for it that stand ahead of
//! their slots, when they have.
//!
//! Commands about it are answered then, and not when the lane was called back: until its worker has answered, it
//! begins one after the other what it has, whatever is paused, and under the limit of before. A worker that does
//! not answer (it is stopped, or hears nothing and renews its lease) is named in a refusal after a while; the
//! change is in force here all the same, for nobody is granted but by it.

use std::collections::BTreeMap;

use attune_core::{ActionRef, PartitionId, Reject, RejectCode, RequestId, WorkerId};

use super::super::{Delivered, Owner, Work};
use crate::queue::Millis;

/// How often is looked whether lanes have come back, in milliseconds.
const LOOK_AGAIN: Millis = 10;
/// How often while no command waits for that.
const LOOK_IDLY: Millis = 1_000;
/// For how long commands wait for that, in milliseconds; then all that come are told at once. Whoever asks sends
/// its command again meanwhile, and takes a refusal for one when every copy is refused.
const PATIENCE: Millis = 3_000;
/// How many commands of one partition wait for that at most: what is not acknowledged takes the place of submissions,
/// of which no more are delivered than `executor.intake.prefetch` allows, 16 by default.
const WAIT_AT_MOST: usize = 4;

/// What is to be said to a command.
pub(super) enum Told {
    /// That its change is in force; or what has kept it from that for longer than anybody waits.
    Now(Delivered, Result<(), Reject>),
    /// Nothing yet: the command waits.
    Later,
}

/// Who keeps changes from being in force.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    partition: PartitionId,
    /// Whether it is changes of pauses; else they are of actions or policy documents.
    of_pauses: bool,
    action_ref: ActionRef,
    worker: WorkerId,
}

impl Kept {
    fn reject(&self) -> Reject {
        let (worker, action_ref) = (self.worker, &self.action_ref);
        let words = format!(
            "worker {worker} has not given back what it was granted ahead of `{action_ref}`, and may begin it"
        );
        Reject::new(RejectCode::Conflict, words)
    }

    /// Whether it would keep the change of this command, too.
    fn is_about(&self, command: &Delivered) -> bool {
        self.partition == command.partition
            && match &command.work {
                Work::Pauses(_) => self.of_pauses,
                Work::Policies(_) => !self.of_pauses,
                Work::Changes(items) => !self.of_pauses && changes(items, &self.action_ref),
                _ => false,
            }
    }
}

fn changes(items: &[(RequestId, String)], action_ref: &ActionRef) -> bool {
    let mut items = items.iter();
    items.any(|(_, changed)| changed == action_ref.as_str())
}

/// Commands whose changes are not in force yet.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    commands: Vec<Delivered>,
    /// Who keeps changes from being in force, and since when.
    kept_since: BTreeMap<Kept, Millis>,
    /// When is looked again whether that is over.
    look_at: Millis,
}

impl Unanswered {
    pub(super) fn wake_at(&self) -> Option<Millis> {
        (!self.commands.is_empty()).then_some(self.look_at)
    }

    fn look_interval(&self) -> Millis {
        match self.commands.is_empty() {
            true => LOOK_IDLY,
            false => LOOK_AGAIN,
        }
    }
}

impl Owner {
    /// Whether somebody is known to keep a change from being in force.
    #[cfg(test)]
    pub(in crate::owner) fn knows_who_keeps(&self) -> bool {
        !self.rounds.unanswered.kept_since.is_empty()
    }

    /// Who keeps the change that a command is about from being in force.
    fn kept_by(&self, command: &Delivered) -> Option<Kept> {
        let partition = self.partition(command.partition)?;
        let lane = match &command.work {
            Work::Pauses(items) if !items.is_empty() => partition.held_lane(|_| true),
            Work::Policies(items) if !items.is_empty() => partition.outdated_lane(|_| true),
            Work::Changes(items) => partition.outdated_lane(|it| changes(items, it)),
            _ => None,
        };
        let (worker, action_ref) = lane?;
        Some(Kept {
            partition: command.partition,
            of_pauses: matches!(command.work, Work::Pauses(_)),
            action_ref,
            worker,
        })
    }

    /// Whether somebody still keeps changes from being in force.
    fn still_keeps(&self, kept: &Kept) -> bool {
        let is_it = |action_ref: &ActionRef| *action_ref == kept.action_ref;
        let lane = self
            .partition(kept.partition)
            .and_then(|partition| match kept.of_pauses {
                true => partition.held_lane(is_it),
                false => partition.outdated_lane(is_it),
            });
        lane.is_some_and(|(worker, _)| worker == kept.worker)
    }

    /// What is to be said to a command whose partition goes by its change.
    pub(super) fn tell_in_force(&mut self, now: Millis, command: Delivered) -> Told {
        let kept = self.kept_by(&command);
        let unanswered = &mut self.rounds.unanswered;
        let Some(kept) = kept else {
            let since = &mut unanswered.kept_since;
            since.retain(|kept, _| !kept.is_about(&command));
            return Told::Now(command, Ok(()));
        };
        let reject = kept.reject();
        let since = unanswered.kept_since.entry(kept);
        let waits = now < *since.or_insert(now) + PATIENCE;
        let others = unanswered.commands.iter();
        let others = others.filter(|other| other.partition == command.partition);
        if !waits || others.count() >= WAIT_AT_MOST {
            return Told::Now(command, Err(reject));
        }
        unanswered.commands.push(command);
        if unanswered.commands.len() == 1 {
            unanswered.look_at = now + LOOK_AGAIN;
        }
        Told::Later
    }

    /// Lets commands take their turn again whose changes are in force by now, or that have waited for long enough.
    pub(super) fn look_for_lanes(&mut self, now: Millis) {
        let unanswered = &mut self.rounds.unanswered;
        let is_idle = unanswered.commands.is_empty() && unanswered.kept_since.is_empty();
        if is_idle || now < unanswered.look_at {
            return;
        }
        let commands = std::mem::take(&mut unanswered.commands);
        let before = std::mem::take(&mut unanswered.kept_since);
        let mut kept_since = BTreeMap::new();
        let (mut wait, mut over) = (Vec::new(), Vec::new());
        for command in commands {
            let kept = self.kept_by(&command);
            let since = kept.as_ref().and_then(|kept| before.get(kept)).copied();
            if let Some((kept, since)) = kept.zip(since) {
                kept_since.insert(kept, since);
            }
            match since.is_some_and(|since| now < since + PATIENCE) {
                true => wait.push(command),
                false => over.push(command),
            }
        }
        // Remembered for a while for copies of who was refused.
        let is_young = |since: &Millis| now < since + 4 * PATIENCE;
        let young = before.into_iter().filter(|(_, since)| is_young(since));
        kept_since.extend(young.filter(|(kept, _)| self.still_keeps(kept)));
        let unanswered = &mut self.rounds.unanswered;
        unanswered.kept_since = kept_since;
        unanswered.commands = wait;
        unanswered.look_at = now + unanswered.look_interval();
        self.put_back(over);
    }
}
