//! Renews the leases that this owner holds, also where the store refuses some of them: one row that
//! cannot be written takes no other lease with it.

use attune_core::{Epoch, PartitionId};

use super::keeper::{Keeper, Step};
use super::{Call, Failure, Notice, Owner, Purpose};
use crate::queue::Millis;

/// A refusal that takes this long is hardly one of a single row, in milliseconds.
const TOOK_LONG: Millis = 1_000;
/// One renewal of all leases. As a rule it is one call; where the store refuses that, it is asked for
/// fewer at a time, until the one is left alone for which it refuses.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    /// When the first call was sent.
    sent: Millis,
    left: Vec<Vec<(PartitionId, Epoch)>>,
    /// How many calls were made.
    calls: usize,
    /// The store has done what one call asked.
    is_done: bool,
}

impl Keeper {
    /// What is renewed together, the first of it last.
    fn left_to_renew(&self) -> Vec<Vec<(PartitionId, Epoch)>> {
        let mut left = self.unrenewable.in_turns(self.epochs(), |lease| lease.0);
        left.reverse();
        left
    }
}

impl Owner {
    /// Extends what is held; what cannot be extended is lost.
    pub(super) fn renew(&mut self, now: Millis) {
        let held = &self.keeper.held;
        self.keeper.unrenewable.retain(|it| held.contains_key(&it));
        if held.is_empty() {
            return self.announce(now);
        }
        self.keeper.renewal = Renewal {
            sent: now,
            left: self.keeper.left_to_renew(),
            ..Renewal::default()
        };
        self.go_on_renewing(now);
    }

    pub(super) fn go_on_renewing(&mut self, now: Millis) {
        while let Some(asked) = self.keeper.renewal.left.pop() {
            if !asked.is_empty() {
                self.keeper.renewal.calls += 1;
                let call = Call::Renew(asked.clone());
                self.keeper.step = Step::Renewing { sent: now, asked };
                return self.call(Purpose::Keep, call);
            }
        }
        let renewal = std::mem::take(&mut self.keeper.renewal);
        let ttl = self.options.lease_ttl;
        let is_leaving = self.keeper.departure.is_some();
        self.keeper.none_renewed = !renewal.is_done;
        if self.keeper.none_renewed {
            self.renew_again(now);
        } else if is_leaving {
            self.keeper.renew_at = now + ttl / 3;
        }
        if !is_leaving {
            // Also where no lease was renewed this owner is there, and may be able to serve what others cannot.
            self.announce(now);
        }
    }

    /// The store refuses to renew these: is it one of them? Where that took long, somebody may hold the
    /// whole table, and asking for fewer only takes longer: it is found out little by little. Once
    /// something is renewed, or a third of the time of a lease is over, the next renewal goes on.
    pub(super) fn renewal_refused(
        &mut self,
        now: Millis,
        sent: Millis,
        mut asked: Vec<(PartitionId, Epoch)>,
        failure: &Failure,
    ) {
        let keeper = &mut self.keeper;
        let took_long = now - sent >= TOOK_LONG;
        let is_late = now - keeper.renewal.sent >= self.options.lease_ttl / 3;
        if took_long || asked.len() == 1 {
            let refused: Vec<PartitionId> = asked.iter().map(|lease| lease.0).collect();
            if let [found] = refused[..]
                && keeper.unrenewable.last(found).is_none()
            {
                // It may be why others could not be taken together with it.
                keeper.untakable.suspect_none();
            }
            keeper.unrenewable.refused(now, &refused, &failure.words);
        }
        if is_late || took_long && keeper.renewal.is_done || keeper.departure.is_some() {
            keeper.renewal.left.clear();
        } else if took_long {
            // Nothing is renewed yet, and the leases run: one of the parts at once.
            keeper.renewal.left = keeper.left_to_renew();
        } else if asked.len() > 1 {
            let half = asked.split_off(asked.len() / 2);
            keeper.renewal.left.extend([half, asked]);
        }
        self.go_on_renewing(now);
    }

    /// The next renewal follows soon: not all that is held was renewed, or not for long.
    pub(super) fn renew_again(&mut self, now: Millis) {
        let ttl = self.options.lease_ttl;
        self.keeper.renew_at = now + self.chance.between(ttl / 20, ttl / 10);
    }

    /// The store has renewed some of those that were asked for; the others are lost, unless this owner
    /// has handed them over meanwhile.
    pub(super) fn renewed(
        &mut self,
        now: Millis,
        asked: Vec<(PartitionId, Epoch)>,
        renewed: &[PartitionId],
    ) {
        let keeper = &mut self.keeper;
        let mut is_healed = false;
        for (partition, _) in &asked {
            is_healed |= keeper.unrenewable.is_fine(*partition);
        }
        let lost = asked.into_iter().filter(|(partition, epoch)| {
            let held = keeper.held.get(partition);
            !renewed.contains(partition) && held.is_some_and(|held| held.epoch == *epoch)
        });
        let lost: Vec<PartitionId> = lost.map(|(partition, _)| partition).collect();
        let renewal = &mut keeper.renewal;
        renewal.is_done = true;
        if renewal.calls > 1 && now - renewal.sent >= self.options.lease_ttl / 3 {
            // The next renewal goes on: what was renewed first must not wait for the last.
            renewal.left.clear();
        } else if is_healed {
            // What was refused one by one is one call again, or each would take its time.
            let rest = renewal.left.drain(..).rev().flatten().collect();
            renewal.left.push(rest);
        }
        let sent = renewal.sent;
        for partition in &lost {
            self.keeper.held.remove(partition);
            self.forget(*partition);
        }
        if !lost.is_empty() {
            self.say(Notice::Lost(lost));
        }
        // At once, and for all: like a lease whose row somebody else has locked, one that is refused is
        // this owner's as far as can be seen.
        self.trust(now, sent);
        self.go_on_renewing(now);
    }
}
