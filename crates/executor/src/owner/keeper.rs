//! Keeps the leases of this owner: says that it is there, renews what it holds, and takes what it was
//! handed or what its looks have found.
//!
//! The owner trusts its leases for `ttl − margin` after the moment at which the last renewal was
//! *asked for*, by a clock that only measures durations; beyond that it decides nothing until a
//! renewal succeeds. A mistake here costs time, never safety: every write checks the epoch.

use std::collections::BTreeMap;

use attune_core::{Bug, Epoch, PartitionId};

use super::doubts::Doubts;
use super::leaving::Departure;
use super::renewing::Renewal;
use super::{Call, Notice, Output, Owner, Place, Purpose, Reply, Stage, SubscriptionId};
use crate::leases::{Held, Standing, shares};
use crate::queue::Millis;
use crate::stored::ObservedLease;

/// What the keeper waits for.
#[derive(Debug, Default)]
pub(super) enum Step {
    /// The time of the next renewal.
    #[default]
    Idle,
    /// Some leases, or all.
    Renewing {
        sent: Millis,
        asked: Vec<(PartitionId, Epoch)>,
    },
    Announcing,
    Acquiring {
        sent: Millis,
        asked: Vec<PartitionId>,
    },
    Retiring,
}

/// The leases, and what is done about them.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    pub(super) held: BTreeMap<PartitionId, Held>,
    pub(super) step: Step,
    pub(super) renewal: Renewal,
    /// The store has refused all that it was asked to renew the last time.
    pub(super) none_renewed: bool,
    /// Leases that cannot be renewed. Several are suspects only where the store took long to refuse them.
    pub(super) unrenewable: Doubts,
    /// When the leases are renewed next.
    pub(super) renew_at: Millis,
    trusted_until: Millis,
    /// Since when the leases are not trusted although there are some.
    untrusted_since: Option<Millis>,
    /// What was received while they were trusted has gone back.
    gave_back: bool,
    /// Partitions that were handed over to this owner, or are wanted in a new epoch, and from
    /// when on.
    pub(super) wanted: BTreeMap<PartitionId, Millis>,
    /// Before that nothing is taken: the store has just refused to.
    take_after: Millis,
    /// Leases that cannot be taken.
    pub(super) untakable: Doubts,
    /// Whether what was seen to be over goes first: the store has refused the last of the others.
    observed_first: bool,
    /// Leases that may be taken if they still stand as they were seen.
    pub(super) observed: Vec<ObservedLease>,
    pub(super) departure: Option<Departure>,
}

/// So long before the end of its leases an owner trusts them no more.
fn margin(ttl: Millis) -> Millis {
    (ttl / 6).min(2_000)
}

/// So long after that, others may have found that they are over: they wait for a fifteenth more.
fn unheard(ttl: Millis) -> Millis {
    margin(ttl) + ttl / 15
}

impl Keeper {
    /// When it has something to do, given how long a lease is.
    pub(super) fn wake_at(&self, ttl: Millis) -> Option<Millis> {
        if self.departure.as_ref().is_some_and(|leaving| leaving.ended) {
            return None;
        }
        let give_back = match self.untrusted_since {
            _ if self.held.is_empty() || self.gave_back => None,
            Some(since) => Some(since + unheard(ttl)),
            None => Some(self.trusted_until),
        };
        // Whatever the store is asked at the moment: it may never answer.
        [give_back, self.next()].into_iter().flatten().min()
    }

    fn next(&self) -> Option<Millis> {
        if !matches!(self.step, Step::Idle) {
            return None;
        }
        match &self.departure {
            Some(departure) => Some(departure.until.min(self.renew_at)),
            None => {
                let wanted = self.wanted.values().copied().min();
                let wanted = wanted.map(|at| at.max(self.take_after));
                Some(wanted.map_or(self.renew_at, |at| at.min(self.renew_at)))
            }
        }
    }

    /// Somebody handed these over to this owner.
    pub(super) fn hint(&mut self, partitions: Vec<PartitionId>) {
        for partition in partitions {
            if !self.held.contains_key(&partition) {
                self.wanted.insert(partition, Millis::MIN);
            }
        }
    }

    pub(super) fn untrusted_for(&self, now: Millis) -> Option<Millis> {
        self.untrusted_since.map(|since| (now - since).max(0))
    }

    pub(super) fn epochs(&self) -> Vec<(PartitionId, Epoch)> {
        let held = self.held.iter();
        held.map(|(partition, held)| (*partition, held.epoch))
            .collect()
    }

    /// Those of these that are taken together next; and the others. What cannot be renewed can hardly be
    /// taken: it keeps nothing back that nothing is known against.
    fn likeliest<T>(&self, some: Vec<T>, partition: fn(&T) -> PartitionId) -> (Vec<T>, Vec<T>) {
        let mut groups = self.untakable.in_turns(some, partition).into_iter();
        let free = groups.next().unwrap_or_default();
        let free = self.unrenewable.in_turns(free, partition);
        let mut turns = free.into_iter().chain(groups);
        let first = turns.find(|group| !group.is_empty());
        (first.unwrap_or_default(), turns.flatten().collect())
    }

    /// How many partitions are being handed over.
    pub(super) fn leaving(&self) -> usize {
        let held = self.held.values();
        held.filter(|held| held.standing != Standing::Kept).count()
    }
}

impl Owner {
    /// Whether the leases can be trusted.
    pub(super) fn is_trusted(&self, now: Millis) -> bool {
        now < self.keeper.trusted_until
    }

    /// The store has done what it was asked at `sent`: the leases are trusted from then on, if that is not
    /// over already.
    pub(super) fn trust(&mut self, now: Millis, sent: Millis) {
        let ttl = self.options.lease_ttl;
        let until = sent + ttl - margin(ttl);
        if now < until {
            self.keeper.trusted_until = until;
            self.keeper.untrusted_since = None;
            self.keeper.gave_back = false;
        }
    }

    /// Gives back what was received, once others may have taken the partitions over: they get no
    /// message while somebody else has it, and who cannot ask the store never learns of them. What is
    /// still held when the store answers again is taken in a new epoch.
    fn give_back(&mut self) {
        self.keeper.gave_back = true;
        if Bug::KeepMessages.is_planted() {
            return;
        }
        let held = self.keeper.held.keys().copied();
        let held: Vec<PartitionId> = held.collect();
        for partition in held {
            self.forget(partition);
        }
        self.say(Notice::GaveBack);
    }

    /// Does what is due about the leases.
    pub(super) fn keep_leases(&mut self, now: Millis) {
        if !self.keeper.held.is_empty()
            && !self.is_trusted(now)
            && self.keeper.untrusted_since.is_none()
        {
            self.keeper.untrusted_since = Some(now);
            self.say(Notice::Untrusted);
        }
        let ttl = self.options.lease_ttl;
        let untrusted = self.keeper.untrusted_for(now);
        if !self.keeper.gave_back && untrusted.is_some_and(|long| long >= unheard(ttl)) {
            self.give_back();
        }
        if !matches!(self.keeper.step, Step::Idle) {
            return;
        }
        if self.keeper.departure.is_some() {
            return self.go_on_departing(now);
        }
        let held = &self.keeper.held;
        let untakable = &self.keeper.untakable;
        self.keeper.observed.retain(|seen| {
            let refused_at = untakable.last(seen.partition);
            !held.contains_key(&seen.partition) && refused_at.is_none_or(|at| now - at >= ttl / 2)
        });
        let mut due: Vec<PartitionId> = self
            .keeper
            .wanted
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(partition, _)| *partition)
            .collect();
        let may_take = now >= self.keeper.take_after;
        if self.keeper.observed_first && !self.keeper.observed.is_empty() {
            due.clear();
        }
        if now >= self.keeper.renew_at {
            self.renew(now);
        } else if may_take && !due.is_empty() {
            let (asked, _) = self.keeper.likeliest(due, |partition| *partition);
            self.acquire(now, asked);
        } else if may_take && !self.keeper.observed.is_empty() {
            let observed = std::mem::take(&mut self.keeper.observed);
            let (observed, others) = self.keeper.likeliest(observed, |seen| seen.partition);
            self.keeper.observed = others;
            let asked = observed.iter().map(|seen| seen.partition).collect();
            self.keeper.step = Step::Acquiring { sent: now, asked };
            self.call(Purpose::Keep, Call::TakeOver(observed));
        }
    }

    pub(super) fn announce(&mut self, now: Millis) {
        self.keeper.step = Step::Announcing;
        let (ttl, cut_off) = (self.presence_ttl(), self.is_cut_off(now));
        self.call(Purpose::Keep, Call::Announce { ttl, cut_off });
    }

    /// What it says of itself has changed.
    pub(super) fn announce_soon(&mut self, now: Millis) {
        self.keeper.renew_at = now;
    }

    /// It ends a little before the leases, so that whoever looks when these have ended no longer
    /// counts on a dead owner.
    pub(super) fn presence_ttl(&self) -> Millis {
        self.options.lease_ttl - self.options.lease_ttl / 15
    }

    fn acquire(&mut self, now: Millis, partitions: Vec<PartitionId>) {
        for partition in &partitions {
            self.keeper.wanted.remove(partition);
        }
        let asked = partitions.clone();
        self.keeper.step = Step::Acquiring { sent: now, asked };
        self.call(Purpose::Keep, Call::Acquire(partitions));
    }

    /// The store has answered the keeper.
    pub(super) fn kept(&mut self, now: Millis, reply: Reply) {
        let step = std::mem::take(&mut self.keeper.step);
        match (step, reply) {
            (Step::Renewing { asked, .. }, Reply::Renewed(renewed)) => {
                self.renewed(now, asked, &renewed);
            }
            (Step::Renewing { sent, asked }, Reply::Failed(failure)) if failure.refused => {
                self.renewal_refused(now, sent, asked, &failure);
            }
            (Step::Announcing, Reply::Announced) => {
                let ttl = self.options.lease_ttl;
                self.keeper.renew_at = now + self.chance.between(ttl * 4 / 15, ttl / 3);
                // A renewal that took long is trusted for a short time only; and what may be none of the
                // lease that is refused was not renewed beside it.
                let is_short = !self.keeper.held.is_empty()
                    && self.keeper.renew_at >= self.keeper.trusted_until - ttl / 15;
                let in_doubt = self.keeper.unrenewable.is_in_doubt();
                if std::mem::take(&mut self.keeper.none_renewed) || is_short || in_doubt {
                    self.renew_again(now);
                }
                self.looks.hurry(now);
            }
            (Step::Acquiring { sent, asked }, Reply::Acquired(acquired)) => {
                if self.keeper.held.is_empty() && !acquired.is_empty() {
                    self.trust(now, sent);
                }
                for partition in asked {
                    self.keeper.untakable.is_fine(partition);
                }
                for (partition, epoch) in acquired {
                    self.acquired(now, sent, partition, epoch);
                }
            }
            (Step::Retiring, Reply::Retired) => {
                let shares = shares(&self.sharing(now), self.options.cluster.partitions);
                if let Some(departure) = &mut self.keeper.departure {
                    departure.shares = Some(shares);
                }
            }
            (Step::Retiring, _) => {
                // Nobody is known to take the partitions: they are given up as they are.
                if let Some(departure) = &mut self.keeper.departure {
                    departure.until = now;
                }
            }
            (Step::Acquiring { asked, .. }, reply) => {
                // What cannot be taken must not keep what is held from being renewed.
                let ttl = self.options.lease_ttl;
                if let Reply::Failed(failure) = reply
                    && failure.refused
                {
                    self.keeper.untakable.refused(now, &asked, &failure.words);
                    self.keeper.observed_first = !self.keeper.observed_first;
                }
                self.keeper.take_after = now + self.chance.between(ttl / 20, ttl / 10);
            }
            _ => self.renew_again(now),
        }
        if matches!(self.keeper.step, Step::Idle) && self.keeper.departure.is_none() {
            self.want_again(now);
        }
    }

    /// What is held and neither served nor loaded is wanted in a new epoch, and asking for it
    /// came to nothing: it is asked for again. Not at once where its row cannot be written, since that
    /// takes time which the other leases need; and not before it is renewed where not even that works.
    fn want_again(&mut self, now: Millis) {
        let places = &self.places;
        let held = self.keeper.held.iter();
        let idle = held
            .filter(|(id, held)| held.standing == Standing::Kept && !places.contains_key(id))
            .map(|(id, _)| *id);
        let idle: Vec<PartitionId> = idle.collect();
        for id in idle {
            let refused_at = self.keeper.untakable.last(id);
            let earliest = refused_at.map_or(now, |at| at + self.options.lease_ttl / 2);
            let at = earliest.max(now) + self.chance.between(100, 1_000);
            if self.keeper.unrenewable.last(id).is_none() {
                self.keeper.wanted.entry(id).or_insert(at);
            }
        }
    }

    fn acquired(&mut self, now: Millis, sent: Millis, partition: PartitionId, epoch: Epoch) {
        self.forget(partition);
        // Whatever it was wanted for once more: this epoch is as good as the next one.
        self.keeper.wanted.remove(&partition);
        let held = Held {
            epoch,
            since: sent,
            standing: Standing::Kept,
        };
        self.keeper.held.insert(partition, held);
        // Nobody else can own it before its own time is over, which is over already where the answer
        // took that long; then this goes back, too.
        if self.keeper.gave_back {
            let ttl = self.options.lease_ttl;
            let over = sent + ttl - margin(ttl);
            self.keeper.gave_back = false;
            self.keeper.untrusted_since = self.keeper.untrusted_since.max(Some(over));
        }
        let subscription = SubscriptionId(self.number());
        let place = Place {
            epoch,
            subscription,
            stage: Stage::Loading(Box::new(self.load_of(now, partition, epoch))),
            mailbox: super::Mailbox::default(),
            untold: 0,
        };
        self.places.insert(partition, place);
        self.out.push(Output::Subscribe(subscription, partition));
    }

    /// A partition must be taken in a new epoch, from a time on.
    pub(super) fn want_new_epoch(&mut self, partition: PartitionId, at: Millis) {
        self.forget(partition);
        self.keeper.wanted.insert(partition, at);
    }

    /// Takes everything that is kept in a new epoch, a little apart.
    pub(super) fn load_all_again(&mut self, now: Millis) {
        let held = self.keeper.held.keys().copied();
        let kept: Vec<PartitionId> = held.filter(|id| self.is_kept(*id)).collect();
        for partition in kept {
            let at = now + self.chance.between(0, 500);
            self.want_new_epoch(partition, at);
        }
    }

    /// A commit has found that somebody else owns a partition.
    pub(super) fn lose(&mut self, partition: PartitionId) {
        self.keeper.held.remove(&partition);
        self.forget(partition);
        // Whoever owns it may be this owner itself, in an epoch that it does not know of.
        self.looks.hurry(Millis::MIN);
    }

    /// Whether a partition is held and not being let go.
    pub(super) fn is_kept(&self, partition: PartitionId) -> bool {
        let held = self.keeper.held.get(&partition);
        held.is_some_and(|held| held.standing == Standing::Kept)
    }
}
