//! What a step does.

use super::message::{Content, Report, Section, Seen};
use super::state::{Breach, Key, LIVES, Lease, Life, Owner, Phase, Row, State, Stream};
use super::step::Step;
use super::{Protocol, Variant};

impl Protocol {
    /// The state after this step, in its canonical form; none if the step changes nothing.
    pub(super) fn after(&self, before: &State, step: &Step) -> Option<State> {
        let mut state = before.clone();
        if let Some(fault) = step.fault() {
            *state.left.of(fault) -= 1;
        }
        if !self.perform(&mut state, step) {
            return None;
        }
        if state.running() > self.bounds.limit {
            state.breach.get_or_insert(Breach::AboveLimit);
        }
        self.reduce(&mut state);
        Some(state)
    }

    /// Carries a step out; false if it is refused.
    fn perform(&self, state: &mut State, step: &Step) -> bool {
        match step {
            Step::Take(section) => {
                state.sections.retain(|other| other != section);
                return self.take(state, section);
            }
            Step::TakeCopy(section) => {
                for other in &mut state.sections {
                    other.delivered |= other == section;
                }
                return self.take(state, section);
            }
            Step::Grant(owner, key, life) => {
                state.write(*owner, key.execution, Row::Granted(key.attempt, *life));
                state.send(*owner, *life, Content::Grant(*key));
            }
            Step::Revoke(owner, key, _) => {
                state.write(*owner, key.execution, Row::Queued(key.attempt));
            }
            Step::Open(life) | Step::Repair(life) => state.sync(state.current(), *life),
            Step::SyncNeedlessly(owner, life) => state.sync(*owner, *life),
            Step::Hear(owner, report) => self.hear(state, *owner, report),
            Step::TakeOver => take_over(state),
            Step::LoseSection(section) => state.sections.retain(|other| other != section),
            Step::Bounce(section) => self.bounce(state, section),
            Step::Start(life, key) => self.start(state, *life, *key),
            Step::End(life, key) => state.workers[*life].set_phase(*key, Phase::Ended),
            Step::Tell(key, report) => self.tell(state, *key, report),
            Step::TellSeen(report) => state.reports.push(report.clone()),
            Step::LoseReport(report) => state.reports.retain(|other| other != report),
            Step::GiveBack(life) => {
                state.workers[*life].give_back(self.variant);
                self.forget_returned(state, *life);
            }
            Step::EndLife(life) => self.end_life(state, *life),
            Step::SeeOver(life) => state.workers[*life].lease = Lease::Lost,
        }
        true
    }

    /// W4: the entry is marked before anything else is done.
    fn start(&self, state: &mut State, life: Life, key: Key) {
        if state.started.has(key) {
            state.breach = Some(Breach::StartedTwice);
        }
        let overtaken = (0..key.execution)
            .any(|other| state.rows[other] != Row::Ended && !state.started.has_any(other));
        if self.bounds.limit == 1 && overtaken && !state.started.has_any(key.execution) {
            state.breach = Some(Breach::OutOfOrder);
        }
        state.started.insert(key);
        state.workers[life].set_phase(key, Phase::Running);
    }

    fn tell(&self, state: &mut State, key: Key, report: &Report) {
        state.reports.push(report.clone());
        let worker = &mut state.workers[report.life];
        if self.is(Variant::ReportsOnce) {
            worker.reported.push(key);
        }
        if self.is(Variant::ForgetsReported) && report.ended {
            worker.entries.retain(|entry| entry.key != key);
        }
    }

    /// W7: at its deadline a life kills what it runs and forgets everything.
    fn end_life(&self, state: &mut State, life: Life) {
        let worker = &mut state.workers[life];
        worker.lease = Lease::Over;
        if self.variant.lives_on() {
            worker.entries.retain(|entry| entry.phase == Phase::Waiting);
        } else {
            worker.entries.clear();
        }
    }

    /// O6: what the broker returns is in no queue, so the owner knows at once that it never arrived.
    fn bounce(&self, state: &mut State, section: &Section) {
        state.sections.retain(|other| other != section);
        let Content::Grant(key) = section.content else {
            return;
        };
        if state.holds(key, section.life) {
            state.note_given_back(key);
            state.rows[key.execution] = Row::Queued(key.attempt);
            self.mark(state, section.life);
        }
    }
}

/// The next owner begins with what the store says and with no stream.
fn take_over(state: &mut State) {
    let rows = state.rows.clone();
    let last = state.current();
    state.owners[last].remembered = rows;
    state.owners.push(Owner {
        epoch: state.owners[last].epoch + 1,
        remembered: Vec::new(),
        streams: [Stream {
            next: 0,
            open: false,
        }; LIVES],
    });
    state.closing = [None; LIVES];
    for report in &mut state.reports {
        report.seen = Seen::Less;
    }
}
