//! What may happen next.

use super::message::{Content, Report, Section, Seen};
use super::state::{Entry, Key, Lease, Life, Phase, State, granted};
use super::step::Step;
use super::{Knowledge, Protocol, Variant};

impl Protocol {
    /// All that may happen next; what [`after`](Self::after) refuses changes nothing.
    pub(super) fn steps(&self, state: &State) -> Vec<Step> {
        let mut steps = Vec::new();
        for owner in 0..state.owners.len() {
            self.steps_of_owner(state, owner, &mut steps);
        }
        steps.push(Step::TakeOver);
        for section in &state.sections {
            self.steps_of_section(state, section, &mut steps);
        }
        for life in 0..state.workers.len() {
            self.steps_of_worker(state, life, &mut steps);
        }
        steps.extend(state.reports.iter().cloned().map(Step::LoseReport));
        let mut left = state.left;
        steps.retain(|step| step.fault().is_none_or(|fault| *left.of(fault) > 0));
        steps
    }

    /// A stale owner has little to say: its commits are refused, and what it has sent is on its way.
    fn steps_of_owner(&self, state: &State, owner: usize, steps: &mut Vec<Step>) {
        let current = owner == state.current();
        if current || self.is(Variant::NoFence) {
            let grants = self.grants(state, owner).into_iter();
            steps.extend(grants.map(|(key, life)| Step::Grant(owner, key, life)));
            steps.extend(
                granted(state.rows_of(owner))
                    .filter(|(_, life)| self.may_revoke(state, *life))
                    .map(|(key, life)| Step::Revoke(owner, key, life)),
            );
        }
        for (life, worker) in state.workers.iter().enumerate() {
            if worker.lease != Lease::Live {
                continue;
            }
            let open = state.owners[owner].streams[life].open;
            if current && !open {
                steps.push(Step::Open(life));
            }
            if current && open && state.is_cut_off(life) && !self.is(Variant::NoRepair) {
                steps.push(Step::Repair(life));
            }
            if open || !current {
                steps.push(Step::SyncNeedlessly(owner, life));
            }
        }
        if current || self.is(Variant::NoFence) || self.is(Variant::SettlesFirst) {
            let reports = state.reports.iter().cloned();
            steps.extend(reports.map(|report| Step::Hear(owner, report)));
        }
    }

    fn steps_of_section(&self, state: &State, section: &Section, steps: &mut Vec<Step>) {
        if state.workers[section.life].lease == Lease::Live || self.variant.lives_on() {
            steps.push(Step::Take(section.clone()));
            steps.push(Step::TakeCopy(section.clone()));
        }
        steps.push(Step::LoseSection(section.clone()));
        let is_grant = matches!(section.content, Content::Grant(_));
        let in_no_queue = !section.delivered || self.is(Variant::BelievesEveryBounce);
        // A stale owner cannot commit what it learns from a return.
        if is_grant && in_no_queue && section.epoch == state.owners[state.current()].epoch {
            steps.push(Step::Bounce(section.clone()));
        }
    }

    fn steps_of_worker(&self, state: &State, life: Life, steps: &mut Vec<Step>) {
        let worker = &state.workers[life];
        let live = worker.lease == Lease::Live;
        let mut waiting = worker.in_phase(Phase::Waiting);
        let next = waiting.next();
        for &Entry { key, phase } in &worker.entries {
            match phase {
                // W4: in order of arrival, only within the slots, only before the own deadline.
                Phase::Waiting => {
                    let has_slot =
                        worker.running() < self.bounds.limit || self.is(Variant::StartsWholeLane);
                    if next == Some(key) && has_slot && (live || self.variant.lives_on()) {
                        steps.push(Step::Start(life, key));
                    }
                }
                Phase::Running if live => steps.push(Step::End(life, key)),
                // W6: until it is settled; what is on its way may be heard again and again anyway.
                Phase::Ended | Phase::Returned if live => {
                    let report = if phase == Phase::Ended {
                        Self::report_of_end(life, key)
                    } else {
                        self.report_of_returns(state, life, key)
                    };
                    let once = self.is(Variant::ReportsOnce) && worker.reported.contains(&key);
                    if !once && !state.reports.contains(&report) {
                        steps.push(Step::Tell(key, report));
                    }
                }
                Phase::Running | Phase::Ended | Phase::Returned => {}
            }
        }
        let nothing_returned = worker.in_phase(Phase::Returned).next().is_none();
        if live && (nothing_returned || self.is(Variant::TellsSeenAlone)) {
            self.tell_seen(state, life, steps);
        }
        match worker.lease {
            Lease::Live => steps.extend([Step::GiveBack(life), Step::EndLife(life)]),
            Lease::Over => steps.push(Step::SeeOver(life)),
            Lease::Lost => {}
        }
    }

    fn report_of_end(life: Life, key: Key) -> Report {
        Report {
            life,
            keys: vec![key],
            ended: true,
            // It goes by the completion listener, which does not know.
            seen: Seen::Less,
        }
    }

    /// W6: with everything that is returned, this one among it.
    fn report_of_returns(&self, state: &State, life: Life, key: Key) -> Report {
        let keys = if self.is(Variant::ReturnsOneByOne) {
            vec![key]
        } else {
            state.workers[life].in_phase(Phase::Returned).collect()
        };
        Report {
            life,
            keys,
            ended: false,
            seen: self.seen(state, life),
        }
    }

    /// What a report that is made now says of the current owner's stream.
    fn seen(&self, state: &State, life: Life) -> Seen {
        let follows = state.workers[life].epoch == state.owners[state.current()].epoch;
        if follows && self.bounds.knowledge == Knowledge::Reported {
            Seen::All
        } else {
            Seen::Less
        }
    }

    /// With nothing that came back a report says only what was seen.
    fn tell_seen(&self, state: &State, life: Life, steps: &mut Vec<Step>) {
        let report = Report {
            life,
            keys: Vec::new(),
            ended: false,
            seen: self.seen(state, life),
        };
        if report.seen == Seen::All && !state.reports.contains(&report) {
            steps.push(Step::TellSeen(report));
        }
    }
}
