//! Hands partitions over: those that belong to others by now, and everything when this owner ends.
//!
//! What was decided is told first, then the messages of a partition are given back, then its lease.

use std::collections::{BTreeMap, BTreeSet};

use attune_core::{Epoch, OwnerId, PartitionId};

use super::keeper::Step;
use super::{Call, Notice, Output, Owner, Purpose, Send, Stage, SubscriptionId};
use crate::leases::Standing;
use crate::queue::Millis;

/// How many partitions a stopping owner gives up at a time: each is loaded by somebody else.
const LEAVING_AT_ONCE: usize = 4;
/// How long a stopping owner goes on handing partitions over one after the other, in
/// milliseconds; what is left then is given up at once.
const LEAVING: Millis = 8_000;
/// How long a partition that is handed over waits for its last dispatches to be confirmed, in
/// milliseconds. What is not confirmed by then is told again by the next owner.
const TELLING: Millis = 2_000;

/// Who stays when this owner leaves.
#[derive(Debug)]
pub(super) struct Departure {
    pub(super) until: Millis,
    /// Who is to have which partition; unknown until the store has said who stays.
    pub(super) shares: Option<BTreeMap<PartitionId, OwnerId>>,
    /// Everything is given up, and nothing more is done.
    pub(super) ended: bool,
}

impl Owner {
    /// Lets go of a partition in favour of `to`: what was decided is told, then its messages are
    /// given back, then its lease.
    pub(super) fn let_go(&mut self, now: Millis, partition: PartitionId, to: Option<OwnerId>) {
        let Some(held) = self.keeper.held.get_mut(&partition) else {
            return;
        };
        held.standing = Standing::Leaving { to };
        self.say(Notice::HandOver { partition, to });
        self.go_on_leaving(now);
    }

    /// Goes on with the partitions that are let go.
    pub(super) fn go_on_leaving(&mut self, now: Millis) {
        let leaving: Vec<PartitionId> = self
            .keeper
            .held
            .iter()
            .filter(|(_, held)| held.standing != Standing::Kept)
            .map(|(partition, _)| *partition)
            .collect();
        for partition in leaving {
            self.leave_partition(now, partition);
        }
    }

    fn leave_partition(&mut self, now: Millis, id: PartitionId) {
        if self.rounds.touches(id) {
            return;
        }
        if self.partition(id).is_some() {
            self.drop_what_was_taken_back(id);
        }
        let Some(place) = self.places.get_mut(&id) else {
            return self.free(id);
        };
        match &mut place.stage {
            Stage::Loading(_) | Stage::Serving(_) => {
                let stage = Stage::Leaving {
                    until: now + TELLING,
                    unsubscribing: false,
                };
                if let Stage::Serving(partition) = std::mem::replace(&mut place.stage, stage) {
                    partition.step_down();
                }
                self.rewrites.remove(&id);
                self.beside.forget(id);
                self.pending.retain(|(partition, _)| *partition != id);
                self.leave_partition(now, id);
            }
            Stage::Leaving {
                until,
                unsubscribing: unsubscribing @ false,
            } => {
                if place.untold > 0 && now < *until {
                    return;
                }
                *unsubscribing = true;
                let (subscription, untold) = (place.subscription, place.untold);
                if untold > 0 {
                    self.say(Notice::HandOverUnconfirmed(id));
                }
                self.telling.forget(id);
                self.links.forget(id);
                self.out.push(Output::Unsubscribe(subscription));
            }
            Stage::Leaving { .. } => {}
        }
    }

    /// The messages of a partition went back: its lease may go.
    pub(super) fn unsubscribed(&mut self, _now: Millis, subscription: SubscriptionId) {
        let left = self.places.iter().find(|(_, place)| {
            place.subscription == subscription && matches!(place.stage, Stage::Leaving { .. })
        });
        if let Some(id) = left.map(|(id, _)| *id) {
            self.forget(id);
            self.free(id);
        }
    }

    /// Gives up the lease of a partition that is let go.
    fn free(&mut self, id: PartitionId) {
        let Some(held) = self.keeper.held.remove(&id) else {
            return;
        };
        let to = match held.standing {
            Standing::Kept => None,
            Standing::Leaving { to } => to,
        };
        self.looks.gives_up();
        let give_up = Call::GiveUp(vec![(id, held.epoch)], to);
        self.call(Purpose::Free(id, held.epoch, to), give_up);
    }

    /// The lease of a partition is free: tells the one that is to have it.
    pub(super) fn freed(
        &mut self,
        now: Millis,
        partition: PartitionId,
        epoch: Epoch,
        to: Option<OwnerId>,
    ) {
        if self.is_cut_off(now) {
            // Nothing goes on in what is still held: the next ones follow at once.
            self.looks.hurry(now);
        }
        if let Some(to) = to {
            self.out.push(Output::Send(Send::HandedOver {
                partition,
                epoch,
                to,
            }));
        }
    }

    /// Begins to hand everything over to those who stay.
    pub(super) fn leave(&mut self, now: Millis) {
        if self.keeper.departure.is_some() {
            return;
        }
        self.keeper.wanted.clear();
        self.keeper.observed.clear();
        self.keeper.departure = Some(Departure {
            until: now + LEAVING,
            shares: None,
            ended: false,
        });
    }

    /// Hands everything over, a few partitions at a time.
    pub(super) fn go_on_departing(&mut self, now: Millis) {
        let Some(departure) = &self.keeper.departure else {
            return;
        };
        if departure.ended {
            return;
        }
        if now >= departure.until || (departure.shares.is_some() && self.keeper.held.is_empty()) {
            return self.end();
        }
        let Some(to) = &departure.shares else {
            // From now on nobody counts on this owner, or hands anything over to it.
            self.keeper.step = Step::Retiring;
            return self.call(Purpose::Keep, Call::Retire);
        };
        // Alone, there is nobody whom many at once could be too much for.
        let room = if to.is_empty() {
            usize::MAX
        } else {
            LEAVING_AT_ONCE.saturating_sub(self.keeper.leaving())
        };
        let kept = self.keeper.held.iter();
        let next: Vec<(PartitionId, Option<OwnerId>)> = kept
            .filter(|(_, held)| held.standing == Standing::Kept)
            .map(|(partition, _)| (*partition, to.get(partition).copied()))
            .take(room)
            .collect();
        for (partition, to) in next {
            self.let_go(now, partition, to);
        }
        if now >= self.keeper.renew_at && !self.keeper.held.is_empty() {
            self.renew(now);
        }
    }

    /// Gives up what is left.
    fn end(&mut self) {
        let held = self.keeper.epochs();
        let places: BTreeSet<PartitionId> = self.places.keys().copied().collect();
        for partition in places {
            self.forget(partition);
        }
        self.keeper.held.clear();
        if !held.is_empty() {
            self.call(Purpose::Nothing, Call::GiveUp(held, None));
        }
        if let Some(departure) = &mut self.keeper.departure {
            departure.ended = true;
        }
        self.out.push(Output::Ended);
    }

    /// Whether everything is being handed over.
    pub(super) fn is_departing(&self) -> bool {
        self.keeper.departure.is_some()
    }

    /// Whether everything was given up.
    pub(super) fn has_ended(&self) -> bool {
        let departure = self.keeper.departure.as_ref();
        departure.is_some_and(|departure| departure.ended)
    }
}
