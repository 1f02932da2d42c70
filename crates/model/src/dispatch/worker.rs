//! What a worker does with a section: its table of entries (W1 to W3, W5).

use super::message::{Content, Report, Section, Seen};
use super::state::{Breach, Entry, Key, Life, Phase, State, Worker};
use super::{Protocol, Variant};

impl Worker {
    pub(super) fn knows(&self, key: Key) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// The keys of what it knows in this phase, in order of arrival.
    pub(super) fn in_phase(&self, phase: Phase) -> impl Iterator<Item = Key> + '_ {
        self.entries
            .iter()
            .filter(move |entry| entry.phase == phase)
            .map(|entry| entry.key)
    }

    pub(super) fn running(&self) -> usize {
        self.in_phase(Phase::Running).count()
    }

    pub(super) fn set_phase(&mut self, key: Key, phase: Phase) {
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.key == key) {
            entry.phase = phase;
        }
    }

    /// W5: everything that waits comes back, never one from the middle.
    pub(super) fn give_back(&mut self, variant: Variant) {
        let waiting = self
            .entries
            .iter_mut()
            .filter(|entry| entry.phase == Phase::Waiting);
        let many = if variant == Variant::ReturnsOne {
            1
        } else {
            usize::MAX
        };
        for entry in waiting.take(many) {
            entry.phase = Phase::Returned;
        }
    }

    /// W1, W2: goes on behind this section if the section may be taken.
    fn follow(&mut self, section: &Section, variant: Variant) -> bool {
        let (epoch, number) = (section.epoch, section.number);
        let newer = epoch > self.epoch;
        let older = epoch < self.epoch;
        let taken = if let Content::Sync(_) = section.content {
            (epoch, number) >= (self.epoch, self.next)
                || variant == Variant::TakesAnyNumber
                || (variant == Variant::TakesOldEpochs && older)
        } else {
            match variant {
                _ if (epoch, number) == (self.epoch, self.next) => true,
                Variant::TakesAnyNumber => !older,
                Variant::TakesOldEpochs => older,
                Variant::OpensWithoutSync => newer,
                Variant::TakesLaterSections => epoch == self.epoch && number > self.next,
                _ => false,
            }
        };
        if taken && (newer || (epoch == self.epoch && number >= self.next)) {
            (self.epoch, self.next) = (epoch, number + 1);
        }
        taken
    }

    /// W3: what comes while something returned is not settled is returned as well, so that the
    /// order of a lane stays.
    fn add_grant(&mut self, key: Key, variant: Variant) {
        if self.knows(key) {
            return;
        }
        let closed = self.in_phase(Phase::Returned).next().is_some();
        let phase = if closed && variant != Variant::TakesBesideReturned {
            Phase::Returned
        } else {
            Phase::Waiting
        };
        self.entries.push(Entry { key, phase });
    }
}

impl Protocol {
    /// A worker takes a section; false if it must leave it.
    pub(super) fn take(&self, state: &mut State, section: &Section) -> bool {
        let life = section.life;
        let worker = &mut state.workers[life];
        let before = (worker.epoch, worker.next);
        if !worker.follow(section, self.variant) {
            return false;
        }
        if (worker.epoch, worker.next) != before {
            state.outdate_reports(life);
        }
        match &section.content {
            Content::Grant(key) => state.workers[life].add_grant(*key, self.variant),
            Content::Settled(keys) => state.workers[life]
                .entries
                .retain(|entry| !keys.contains(&entry.key)),
            Content::Sync(named) => take_sync(state, life, named),
        }
        self.forget_returned(state, life);
        true
    }

    /// Without a record of what it gave back a worker says it once and forgets it.
    pub(super) fn forget_returned(&self, state: &mut State, life: Life) {
        if !self.is(Variant::ForgetsReturned) {
            return;
        }
        let worker = &mut state.workers[life];
        state
            .reports
            .extend(worker.in_phase(Phase::Returned).map(|key| Report {
                life,
                keys: vec![key],
                ended: false,
                seen: Seen::Less,
            }));
        worker
            .entries
            .retain(|entry| entry.phase != Phase::Returned);
    }
}

impl State {
    /// The worker has seen more than its reports say that are on their way.
    fn outdate_reports(&mut self, life: Life) {
        let enough = self.closing[life] == Some(0);
        for report in &mut self.reports {
            if report.life == life && report.seen == Seen::All {
                report.seen = if enough { Seen::Enough } else { Seen::Less };
            }
        }
    }
}

/// W2: what the sync does not name is forgotten, and what it names and the worker lacks becomes
/// returned: it cannot come any more.
fn take_sync(state: &mut State, life: Life, named: &[Key]) {
    let killed = state.workers[life].in_phase(Phase::Running);
    if { killed }.any(|key| !named.contains(&key) && state.holds(key, life)) {
        state.breach = Some(Breach::HolderKilled);
    }
    let worker = &mut state.workers[life];
    worker.entries.retain(|entry| named.contains(&entry.key));
    for &key in named {
        if !worker.knows(key) {
            worker.entries.push(Entry {
                key,
                phase: Phase::Returned,
            });
        }
    }
}
