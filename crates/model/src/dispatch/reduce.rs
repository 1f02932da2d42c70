//! The canonical form of a state: what nobody can see any more is not told apart.

use super::message::Seen;
use super::state::{Entry, Lease, Phase, Row, State, granted};
use super::{Knowledge, Protocol, Variant};

impl Protocol {
    /// Takes out of a state what makes no difference to anything that may follow.
    pub(super) fn reduce(&self, state: &mut State) {
        if !self.variant.lives_on() {
            forget_streams_of_the_dead(state);
        }
        if !self.is(Variant::TakesAnyNumber) && !self.is(Variant::BelievesEveryBounce) {
            self.drop_late_sections(state);
            count_from_next(state);
        }
        match self.bounds.knowledge {
            Knowledge::Asked => lift_marks(state),
            Knowledge::Reported => forget_what_was_seen(state),
        }
        let old_reports_count = self.is(Variant::SameAttempt)
            || self.is(Variant::NoFence)
            || self.is(Variant::TakesAnyReport);
        if !old_reports_count {
            drop_useless_reports(state);
        }
        self.drop_silent_owners(state);
        state.sections.sort_unstable();
        state.sections.dedup();
        state.reports.sort_unstable();
        state.reports.dedup();
    }

    /// Late and doubled sections that their worker would leave.
    fn drop_late_sections(&self, state: &mut State) {
        let State {
            sections, workers, ..
        } = state;
        sections.retain(|section| {
            let worker = &workers[section.life];
            let older = section.epoch < worker.epoch;
            (section.epoch, section.number) >= (worker.epoch, worker.next)
                || (self.is(Variant::TakesOldEpochs) && older)
        });
    }

    /// Once every worker that lives follows the current owner, nothing of a stale one is taken.
    fn drop_silent_owners(&self, state: &mut State) {
        let last = state.current();
        let epoch = state.owners[last].epoch;
        let heard = self.is(Variant::NoFence)
            || self.is(Variant::TakesOldEpochs)
            || self.is(Variant::TakesAnyNumber);
        let followed = state
            .workers
            .iter()
            .all(|worker| worker.lease != Lease::Live || worker.epoch == epoch);
        if followed && !heard {
            state.owners.drain(..last);
        }
    }
}

fn forget_streams_of_the_dead(state: &mut State) {
    for (life, worker) in state.workers.iter_mut().enumerate() {
        if worker.lease == Lease::Live {
            continue;
        }
        (worker.epoch, worker.next) = (0, 0);
        state.sections.retain(|section| section.life != life);
        for owner in &mut state.owners {
            owner.streams[life].next = 0;
        }
    }
}

/// Numbers matter only as distances from the one that the worker takes next.
fn count_from_next(state: &mut State) {
    let current = state.owners[state.current()].epoch;
    for (life, worker) in state.workers.iter_mut().enumerate() {
        let (epoch, next) = (worker.epoch, worker.next);
        for section in &mut state.sections {
            if section.life == life && section.epoch == epoch {
                section.number -= next;
            }
        }
        for owner in &mut state.owners {
            if owner.epoch == epoch {
                owner.streams[life].next -= next;
            }
        }
        if epoch == current
            && let Some(needed) = &mut state.closing[life]
        {
            *needed = needed.saturating_sub(next);
        }
        worker.next = 0;
    }
}

/// O3: a mark is lifted when the worker has all that it was granted, and what came back is heard.
fn lift_marks(state: &mut State) {
    let State {
        rows,
        workers,
        closing,
        ..
    } = state;
    for (life, (worker, mark)) in workers.iter().zip(closing).enumerate() {
        let unseen = granted(rows).any(|(key, holder)| {
            let returned = Phase::Returned;
            let seen = |entry: &Entry| entry.key == key && entry.phase != returned;
            holder == life && !worker.entries.iter().any(seen)
        });
        if !unseen {
            *mark = None;
        }
    }
}

/// What reports say of marks that are lifted, or of lives to which nothing is granted any more.
fn forget_what_was_seen(state: &mut State) {
    for (life, worker) in state.workers.iter().enumerate() {
        let lost = worker.lease == Lease::Lost;
        let mark = &mut state.closing[life];
        if lost {
            *mark = None;
        } else if worker.lease == Lease::Over {
            // It takes nothing any more.
            *mark = mark.map(|needed| needed.min(1));
        }
        for report in &mut state.reports {
            if report.life == life && (lost || (report.seen == Seen::Enough && mark.is_none())) {
                report.seen = Seen::Less;
            }
        }
    }
}

/// Reports that change nothing and settle nothing, whoever hears them.
fn drop_useless_reports(state: &mut State) {
    let State {
        rows,
        workers,
        reports,
        ..
    } = state;
    reports.retain(|report| {
        report.seen != Seen::Less
            || report.keys.iter().any(|key| {
                rows[key.execution] == Row::Granted(key.attempt, report.life)
                    || workers[report.life].knows(*key)
            })
    });
}
