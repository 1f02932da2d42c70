//! What owners did, held against what policy documents say in the version under which they did it.
//!
//! *I12.* Where an action leaves it to documents how many may wait, so many may in its queue as the document of
//! its pack says, else the one of all actions. Whoever is accepted has no higher priority than the document of
//! its user allows, else the one of every user.
//!
//! Owners write down the bounds of their queues and the versions of the set, the API what each version says,
//! clients for whom they ask. Where one of these is not recorded nothing is judged, and neither is what follows
//! from an executor's settings.

use std::collections::HashMap;

use attune_core::{ActionRef, Epoch, PolicyTarget, Priority, Status};
use attune_record::Record;
use serde::Deserialize as _;
use serde_json::Value;

use super::decision::What;
use super::facts::Facts;
use super::policies::Said;
use super::{Judged, Promise, Violation, violation};

/// Which actions leave it to documents how many may wait: those of which nobody asked for anything else.
#[derive(Debug, Default)]
pub(super) struct Inheriting {
    actions: HashMap<String, bool>,
}

impl Inheriting {
    /// Adds a record; those of other kinds change nothing.
    pub(super) fn add(&mut self, record: &Record) {
        if let Record::ApplyInvoke {
            action_ref,
            inherits_length,
            ..
        } = record
        {
            let inherits = self.actions.entry(action_ref.clone()).or_insert(true);
            *inherits &= *inherits_length;
        }
    }

    fn of(&self, action_ref: &ActionRef) -> bool {
        self.actions.get(action_ref.as_str()) == Some(&true)
    }
}

pub(super) fn judge(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    if !facts.policies.are_known() {
        return;
    }
    judge_lengths(facts, judged, broken);
    judge_priorities(facts, judged, broken);
}

/// What is said in a version, found once.
struct Known<'a> {
    facts: &'a Facts,
    said: HashMap<(PolicyTarget, i64), Said>,
}

impl Known<'_> {
    fn said(&mut self, target: &PolicyTarget, version: i64) -> &Said {
        let key = (target.clone(), version);
        let policies = &self.facts.policies;
        self.said
            .entry(key)
            .or_insert_with(|| policies.said(target, version))
    }

    /// The first of these that says something at a path; `None` when none does, or it is not known.
    fn first(&mut self, targets: &[PolicyTarget], version: i64, at: &str) -> Option<Value> {
        for target in targets {
            match self.said(target, version) {
                Said::Unknown => return None,
                Said::Nothing => {}
                Said::This(value) => match value.pointer(at) {
                    None | Some(Value::Null) => {}
                    Some(found) => return Some(found.clone()),
                },
            }
        }
        None
    }
}

fn judge_lengths(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    let mut known = Known {
        facts,
        said: HashMap::new(),
    };
    let refs = facts.action_refs();
    for (action_id, decisions) in &facts.decisions {
        let action_ref = refs.get(action_id).filter(|it| facts.inheriting.of(it));
        let (Some(action_ref), Some(partition)) = (action_ref, facts.partition_of(*action_id))
        else {
            continue;
        };
        let targets = [
            PolicyTarget::Pack(action_ref.pack().to_owned()),
            PolicyTarget::Global,
        ];
        let mut decisions: Vec<_> = decisions.iter().collect();
        decisions.sort_unstable_by_key(|decision| (decision.epoch, decision.record));
        let mut bound: Option<(Epoch, u32, u32)> = None;
        for decision in decisions {
            if let What::Bounds(_, max_length) = decision.what {
                bound = max_length.map(|it| (decision.epoch, it, decision.record));
            }
            // A bound that was not changed is not written down again: it is that of the round.
            let is_decided = matches!(decision.what, What::Granted(..) | What::Accepted(..));
            let own = bound.filter(|(epoch, ..)| *epoch == decision.epoch && is_decided);
            let Some((epoch, length, record)) = own else {
                continue;
            };
            let version = facts.policies.version_at(partition, epoch, decision.record);
            let due = known.first(&targets, version, "/action_defaults/queue/max_length");
            let Some(due) = due.and_then(|due| due.as_u64()) else {
                continue;
            };
            judged.documents += 1;
            if due != u64::from(length) {
                let what = format!(
                    "{action_ref} takes {length} under version {version} of the policy set, which says {due}"
                );
                broken.push(violation(Promise::I12, what, [record, decision.record]));
                break;
            }
        }
    }
}

fn judge_priorities(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    let mut known = Known {
        facts,
        said: HashMap::new(),
    };
    let names = facts.names();
    let requests = facts.requests.values().filter(|request| !request.differs);
    let mut accepted: Vec<_> = requests
        .filter_map(|request| {
            let user = *names.get(&request.user?)?;
            let (id, _) = request.execution?;
            let execution = facts.execution(id)?;
            let status = execution.status_accepted?;
            let is_one = !user.is_empty() && status != Status::Rejected;
            is_one.then_some((id, user, execution.priority?, execution.accepted?))
        })
        .collect();
    accepted.sort_unstable();
    for (id, user, priority, record) in accepted {
        let version = facts
            .policies
            .version_at(id.partition(), id.seq().epoch(), record);
        let own = PolicyTarget::User(user.to_owned());
        // A document of one's own takes the place of the one of every user as a whole.
        let target = match known.said(&own, version) {
            Said::Unknown => continue,
            Said::This(_) => own,
            Said::Nothing => PolicyTarget::User(PolicyTarget::EVERY_USER.to_owned()),
        };
        let max = known.first(&[target], version, "/policy/priority/max");
        let Some(max) = max.and_then(|max| Priority::deserialize(max).ok()) else {
            continue;
        };
        judged.documents += 1;
        // The higher goes first and is the smaller.
        if priority < max {
            let what = format!(
                "execution {id} waits as {priority} under version {version} of the policy set, which allows \
                 its user {max}"
            );
            broken.push(violation(Promise::I12, what, [record]));
        }
    }
}
