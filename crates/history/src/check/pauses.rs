//! What operators hold, by what they asked the API for: owners are not believed about it.
//!
//! *I2.* From the moment that every owner concerned has said that it goes by a pause, until somebody
//! asks to resume it, nobody is given a slot of an action that it covers; of a drain nobody is
//! accepted either. What an owner decided after it was surely the owner is left out: it may have
//! committed that before, and was stopped before it wrote it down. An API writes down what it is asked
//! before it stores it, so that a kill loses no resume that took effect.

use std::collections::HashMap;

use attune_core::{ActionId, PauseMode, PauseTarget, Status};
use attune_record::Record;
use uuid::Uuid;

use super::decision::{Decision, What};
use super::facts::Facts;
use super::processes::Tenure;
use super::{Judged, Promise, Violation, violation};

/// Something that was held or resumed.
#[derive(Debug)]
struct Change {
    target: PauseTarget,
    mode: Option<PauseMode>,
    asked_ns: i64,
    /// When it was in the store.
    stored_ns: Option<i64>,
    /// When all owners concerned went by it.
    in_force_ns: Option<i64>,
    record: u32,
}

/// What the API was asked to hold and to resume.
#[derive(Debug, Default)]
pub(super) struct Pauses(HashMap<Uuid, Change>);

/// How long after it was asked for a change may still be stored whose outcome nobody knows: longer than
/// any statement lasts.
const STORED_WITHIN_NS: i64 = 60_000_000_000;

/// A time in which something was surely held.
struct Held<'a> {
    target: &'a PauseTarget,
    mode: PauseMode,
    from: i64,
    to: i64,
    record: u32,
}

impl Pauses {
    /// Adds a record; those of other kinds change nothing.
    pub(super) fn add(&mut self, number: u32, record: &Record) {
        match record {
            Record::PauseInvoke {
                pause_id,
                scope,
                target,
                mode,
                t_ns,
            } => {
                if let Ok(target) = PauseTarget::of(scope, target) {
                    let change = Change {
                        target,
                        mode: *mode,
                        asked_ns: *t_ns,
                        stored_ns: None,
                        in_force_ns: None,
                        record: number,
                    };
                    self.0.insert(*pause_id, change);
                }
            }
            Record::PauseOk {
                pause_id,
                in_force,
                t_ns,
            } => {
                if let Some(change) = self.0.get_mut(pause_id) {
                    change.stored_ns = Some(*t_ns);
                    change.in_force_ns = in_force.then_some(*t_ns);
                }
            }
            _ => {}
        }
    }

    /// When what was surely held. What was asked for after it, or may have been stored after it, ends it.
    fn held(&self) -> Vec<Held<'_>> {
        let ends = |held: &Change, other: &Change| {
            let at_last = other
                .stored_ns
                .unwrap_or(other.asked_ns.saturating_add(STORED_WITHIN_NS));
            let is_later = at_last >= held.asked_ns;
            other.target == held.target && other.mode != held.mode && is_later
        };
        let held = self.0.values().filter_map(|change| {
            let (mode, from) = (change.mode?, change.in_force_ns?);
            let others = self.0.values().filter(|other| ends(change, other));
            let to = others.map(|other| other.asked_ns).min();
            Some(Held {
                target: &change.target,
                mode,
                from,
                to: to.unwrap_or(i64::MAX),
                record: change.record,
            })
        });
        let mut held: Vec<_> = held.filter(|held| held.from < held.to).collect();
        held.sort_unstable_by_key(|held| (held.from, held.record));
        held
    }
}

pub(super) fn judge(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    let held = facts.pauses.held();
    if held.is_empty() {
        return;
    }
    let (refs, tenures) = (facts.action_refs(), facts.processes.tenures());
    for (action_id, decisions) in &facts.decisions {
        let (Some(action_ref), Some(tenures)) = (
            refs.get(action_id),
            facts
                .partition_of(*action_id)
                .and_then(|it| tenures.get(&it)),
        ) else {
            continue;
        };
        let held: Vec<_> = held
            .iter()
            .filter(|it| it.target.covers(action_ref))
            .collect();
        judged.pauses += held.len() as u64;
        let wrong = decisions.iter().find_map(|decision| {
            let held = held
                .iter()
                .find(|held| is_against(held, decision, tenures))?;
            Some((*held, decision))
        });
        if let Some((held, decision)) = wrong {
            let what = format!(
                "{} although operators hold {}: {}",
                said(*action_id, &decision.what),
                held.target,
                held.mode
            );
            broken.push(violation(Promise::I2, what, [held.record, decision.record]));
        }
    }
}

/// Whether a decision was made that must not be made while this is held.
fn is_against(held: &Held<'_>, decision: &Decision, tenures: &[Tenure]) -> bool {
    let is_of_kind = match &decision.what {
        What::Granted(..) | What::HandedOn(_) => true,
        What::Accepted(_, status) => held.mode == PauseMode::Drain && *status != Status::Rejected,
        _ => false,
    };
    let mut tenures = tenures.iter();
    let mut is_sure =
        || tenures.any(|it| it.epoch == decision.epoch && decision.t_ns <= it.sure_until);
    is_of_kind && (held.from..held.to).contains(&decision.t_ns) && is_sure()
}

fn said(action_id: ActionId, what: &What) -> String {
    match what {
        What::Granted((id, attempt), ..) | What::HandedOn((id, attempt)) => {
            format!("attempt {attempt} of execution {id} was given a slot of action {action_id}")
        }
        What::Accepted(id, _) => format!("execution {id} was accepted by action {action_id}"),
        _ => String::new(),
    }
}
