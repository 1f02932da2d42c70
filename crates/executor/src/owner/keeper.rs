//! Keeps the leases of this owner: says that it is there, renews what it holds, and takes what it was
//! handed or what its looks have found.
//!
//! The owner trusts its leases for `ttl − margin` after the moment at which the last renewal was
//! *asked for*, by a clock that only measures durations; beyond that it decides nothing until a
//! renewal succeeds. A mistake here costs time, never safety: every write checks the epoch.

use std::collections::BTreeMap;

use attune_core::{Bug, Epoch, PartitionId};

use super::leaving::Departure;
use super::{Call, Failure, Notice, Output, Owner, Place, Purpose, Reply, Stage, SubscriptionId};
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
    },
    Retiring,
}

/// One renewal of all leases. As a rule it is one call; where the store refuses that, it is asked for
/// fewer at a time, until the one is left alone for which it refuses.
#[derive(Debug, Default)]
struct Renewal {
    /// When the first call was sent.
    sent: Millis,
    left: Vec<Vec<(PartitionId, Epoch)>>,
    /// The store has done what one call asked.
    is_done: bool,
    renewed: Vec<PartitionId>,
    /// Those whose rows cannot be written: like one that somebody else has locked, such a lease is this
    /// owner's as far as can be seen.
    refused: Vec<PartitionId>,
}

/// The leases, and what is done about them.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    pub(super) held: BTreeMap<PartitionId, Held>,
    pub(super) step: Step,
    renewal: Renewal,
    /// The store has refused every lease the last time.
    none_renewed: bool,
    /// Leases that cannot be renewed: since when, and why.
    unrenewable: BTreeMap<PartitionId, (Millis, String)>,
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
    /// Until then one is taken at a time: the store has refused several, and one of them may be why.
    apart_until: Millis,
    /// Whether what was seen to be over goes first: the store has refused the last of the others.
    observed_first: bool,
    /// Leases that may be taken if they still stand as they were seen.
    pub(super) observed: Vec<ObservedLease>,
    pub(super) departure: Option<Departure>,
}

/// A refusal that takes this long is none of a single row, in milliseconds.
const TOOK_LONG: Millis = 1_000;

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

    /// The lease that could not be renewed for longest.
    pub(super) fn unrenewable(&self) -> Option<(PartitionId, Millis, &str)> {
        let longest = self.unrenewable.iter().min_by_key(|(_, (since, _))| *since);
        longest.map(|(partition, (since, words))| (*partition, *since, words.as_str()))
    }

    pub(super) fn epochs(&self) -> Vec<(PartitionId, Epoch)> {
        let held = self.held.iter();
        held.map(|(partition, held)| (*partition, held.epoch))
            .collect()
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

    fn trust(&mut self, sent: Millis) {
        let ttl = self.options.lease_ttl;
        self.keeper.trusted_until = sent + ttl - margin(ttl);
        self.keeper.untrusted_since = None;
        self.keeper.gave_back = false;
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
        let missing = |seen: &ObservedLease| !held.contains_key(&seen.partition);
        self.keeper.observed.retain(missing);
        let mut due: Vec<PartitionId> = self
            .keeper
            .wanted
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(partition, _)| *partition)
            .collect();
        let may_take = now >= self.keeper.take_after;
        let apart = now < self.keeper.apart_until;
        if apart {
            due = self.any_of(due).0;
            if self.keeper.observed_first && !self.keeper.observed.is_empty() {
                due.clear();
            }
        }
        if now >= self.keeper.renew_at {
            self.renew(now);
        } else if may_take && !due.is_empty() {
            self.acquire(now, due);
        } else if may_take && !self.keeper.observed.is_empty() {
            self.keeper.step = Step::Acquiring { sent: now };
            let mut observed = std::mem::take(&mut self.keeper.observed);
            if apart {
                (observed, self.keeper.observed) = self.any_of(observed);
            }
            self.call(Purpose::Keep, Call::TakeOver(observed));
        }
    }

    /// One of these by chance, so that none is always behind one that cannot be taken; and the others.
    fn any_of<T>(&mut self, mut some: Vec<T>) -> (Vec<T>, Vec<T>) {
        let last = Millis::try_from(some.len()).unwrap_or(Millis::MAX) - 1;
        if last < 1 {
            return (some, Vec::new());
        }
        let chosen = self.chance.between(0, last);
        let chosen = some.swap_remove(usize::try_from(chosen).unwrap_or(0));
        (vec![chosen], some)
    }

    /// Extends what is held; what cannot be extended is lost.
    pub(super) fn renew(&mut self, now: Millis) {
        let all = self.keeper.epochs();
        let (held, unrenewable) = (&self.keeper.held, &mut self.keeper.unrenewable);
        unrenewable.retain(|partition, _| held.contains_key(partition));
        if held.is_empty() {
            return self.announce(now);
        }
        let (apart, together): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|(partition, _)| unrenewable.contains_key(partition));
        let mut left: Vec<_> = apart.into_iter().map(|lease| vec![lease]).collect();
        left.push(together);
        self.keeper.renewal = Renewal {
            sent: now,
            left,
            ..Renewal::default()
        };
        self.go_on_renewing(now);
    }

    fn go_on_renewing(&mut self, now: Millis) {
        while let Some(asked) = self.keeper.renewal.left.pop() {
            if !asked.is_empty() {
                let call = Call::Renew(asked.clone());
                self.keeper.step = Step::Renewing { sent: now, asked };
                return self.call(Purpose::Keep, call);
            }
        }
        let renewal = std::mem::take(&mut self.keeper.renewal);
        let ttl = self.options.lease_ttl;
        self.keeper.none_renewed = !renewal.is_done;
        if self.keeper.none_renewed {
            self.renew_again(now);
            if self.keeper.departure.is_none() {
                // It is there all the same, and may be able to serve what others cannot.
                self.announce(now);
            }
            return;
        }
        self.renewed(&[renewal.renewed, renewal.refused].concat());
        self.trust(renewal.sent);
        if self.keeper.departure.is_none() {
            self.announce(now);
        } else {
            self.keeper.renew_at = now + ttl / 3;
        }
    }

    /// The store refuses to renew these: is it one of them? It is not where that took long: then
    /// somebody holds the whole table, and asking for fewer only takes longer.
    fn renewal_refused(
        &mut self,
        now: Millis,
        sent: Millis,
        mut asked: Vec<(PartitionId, Epoch)>,
        failure: &Failure,
    ) {
        let all_since = self.keeper.renewal.sent;
        if now - sent >= TOOK_LONG || now - all_since >= self.options.lease_ttl / 3 {
            return self.renew_again(now);
        }
        if self.is_departing() {
            return self.renew_again(now);
        }
        if let [(partition, _)] = asked[..] {
            let unrenewable = self.keeper.unrenewable.entry(partition);
            let (_, words) = unrenewable.or_insert_with(|| (now, String::new()));
            words.clone_from(&failure.words);
            self.keeper.renewal.refused.push(partition);
        } else {
            let half = asked.split_off(asked.len() / 2);
            self.keeper.renewal.left.extend([half, asked]);
        }
        self.go_on_renewing(now);
    }

    /// No lease was renewed.
    fn renew_again(&mut self, now: Millis) {
        let ttl = self.options.lease_ttl;
        self.keeper.renew_at = now + self.chance.between(ttl / 20, ttl / 10);
    }

    fn announce(&mut self, now: Millis) {
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
        self.keeper.step = Step::Acquiring { sent: now };
        self.call(Purpose::Keep, Call::Acquire(partitions));
    }

    /// The store has answered the keeper.
    pub(super) fn kept(&mut self, now: Millis, reply: Reply) {
        let step = std::mem::take(&mut self.keeper.step);
        match (step, reply) {
            (Step::Renewing { asked, .. }, Reply::Renewed(renewed)) => {
                for (partition, _) in asked {
                    self.keeper.unrenewable.remove(&partition);
                }
                self.keeper.renewal.is_done = true;
                self.keeper.renewal.renewed.extend(renewed);
                self.go_on_renewing(now);
            }
            (Step::Renewing { sent, asked }, Reply::Failed(failure)) if failure.refused => {
                self.renewal_refused(now, sent, asked, &failure);
            }
            (Step::Announcing, Reply::Announced) => {
                let ttl = self.options.lease_ttl;
                self.keeper.renew_at = now + self.chance.between(ttl * 4 / 15, ttl / 3);
                // A renewal that took long is trusted for a short time only.
                let is_short = !self.keeper.held.is_empty()
                    && self.keeper.renew_at >= self.keeper.trusted_until - ttl / 15;
                if std::mem::take(&mut self.keeper.none_renewed) || is_short {
                    self.renew_again(now);
                }
                self.looks.hurry(now);
            }
            (Step::Acquiring { sent }, Reply::Acquired(acquired)) => {
                if self.keeper.held.is_empty() && !acquired.is_empty() {
                    self.trust(sent);
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
            (Step::Acquiring { .. }, reply) => {
                // What cannot be taken must not keep what is held from being renewed.
                let ttl = self.options.lease_ttl;
                if matches!(reply, Reply::Failed(failure) if failure.refused) {
                    self.keeper.apart_until = now + 4 * ttl;
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
    /// came to nothing: it is asked for again.
    fn want_again(&mut self, now: Millis) {
        let places = &self.places;
        let held = self.keeper.held.iter();
        let idle = held
            .filter(|(id, held)| held.standing == Standing::Kept && !places.contains_key(id))
            .map(|(id, _)| *id);
        let idle: Vec<PartitionId> = idle.collect();
        for id in idle {
            let at = now + self.chance.between(100, 1_000);
            self.keeper.wanted.entry(id).or_insert(at);
        }
    }

    fn renewed(&mut self, renewed: &[PartitionId]) {
        let held = self.keeper.held.keys().copied();
        let lost: Vec<PartitionId> = held.filter(|id| !renewed.contains(id)).collect();
        if lost.is_empty() {
            return;
        }
        for partition in &lost {
            self.keeper.held.remove(partition);
            self.forget(*partition);
        }
        self.say(Notice::Lost(lost));
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
