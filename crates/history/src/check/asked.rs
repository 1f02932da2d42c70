//! What those who ask said themselves, held against what owners did with it: owners are not
//! believed about the limits and priorities under which they worked.
//!
//! *I1.* What the broker has confirmed, for an action that there is, is in the store in the end,
//! if only as a refusal.
//!
//! *I2.* At the start of a run, no more runs of its action may be under way than the highest limit
//! that can have been in force between the moment its submission was made, before which it cannot
//! have been given its slot, and this start. A limit can be in force from the moment that somebody
//! asked for it until another, which was asked for after that was carried out, is known to be in
//! force. One that never was answered may come into force at any time; before the first that is
//! known, the action has no limit.
//!
//! *I3.* An execution waits with the priority that its client asked for, unless the policy of its action
//! or a policy document decides about that, and is held up only if its client asked for that. At each grant the order in force is one that can be, by the same rule
//! as a limit, where no API was killed: what one was asked for at that moment may be stored, and the
//! record of it lost.

use std::collections::{BTreeMap, HashMap, HashSet};

use attune_core::{ActionId, Attempt, ExecutionId, OrderRule, RequestId};
use attune_record::Record;
use uuid::Uuid;

use super::facts::Facts;
use super::request::Request;
use super::{FinalRow, Judged, Promise, Violation, violation};

/// A change of a limit or an order.
#[derive(Debug, Clone)]
struct Change {
    limit: Option<u32>,
    order: OrderRule,
    asked_ns: i64,
    /// When it was in the store.
    stored_ns: Option<i64>,
    /// When its owner went by it.
    in_force_ns: Option<i64>,
}

/// What was asked for apart from executions.
#[derive(Debug, Default)]
pub(super) struct Asked {
    changes: HashMap<Uuid, (String, Change)>,
    actions: HashMap<String, ActionId>,
    /// Actions whose policies decide about priorities, at some time.
    priorities_set: HashSet<String>,
    /// When the broker first confirmed a request, and the record.
    pub(super) confirmed: HashMap<RequestId, (i64, u32)>,
}

impl Asked {
    /// Adds a record; those of other kinds change nothing.
    pub(super) fn add(&mut self, number: u32, record: &Record) {
        match record {
            Record::Confirmed { request_id, t_ns } => {
                let first = self.confirmed.entry(*request_id).or_insert((*t_ns, number));
                *first = (*first).min((*t_ns, number));
            }
            Record::ApplyInvoke {
                apply_id,
                action_ref,
                limit,
                order,
                sets_priorities,
                t_ns,
                ..
            } => {
                if *sets_priorities {
                    self.priorities_set.insert(action_ref.clone());
                }
                let change = Change {
                    limit: *limit,
                    order: *order,
                    asked_ns: *t_ns,
                    stored_ns: None,
                    in_force_ns: None,
                };
                let change = (action_ref.clone(), change);
                self.changes.insert(*apply_id, change);
            }
            Record::ApplyOk {
                apply_id,
                action_id,
                in_force,
                t_ns,
            } => {
                if let Some((action_ref, change)) = self.changes.get_mut(apply_id) {
                    change.stored_ns = Some(*t_ns);
                    change.in_force_ns = in_force.then_some(*t_ns);
                    self.actions.insert(action_ref.clone(), *action_id);
                }
            }
            _ => {}
        }
    }
}

impl Asked {
    /// The actions that somebody applied, with their refs.
    pub(super) fn actions(&self) -> impl Iterator<Item = (ActionId, &String)> {
        self.actions.iter().map(|(name, id)| (*id, name))
    }

    /// Whether the policy of an action has decided about priorities at some time.
    fn sets_priorities(&self, action: ActionId) -> bool {
        let mut set = self.priorities_set.iter();
        set.any(|action_ref| self.actions.get(action_ref) == Some(&action))
    }
}

/// The limits that can have been in force, by action.
#[derive(Debug, Default)]
pub(super) struct Limits {
    changes: BTreeMap<ActionId, Vec<Change>>,
}

impl Limits {
    pub(super) fn of(asked: &Asked) -> Self {
        let mut limits = Self::default();
        for (action_ref, change) in asked.changes.values() {
            if let Some(action) = asked.actions.get(action_ref) {
                let changes = limits.changes.entry(*action).or_default();
                changes.push(change.clone());
            }
        }
        limits
    }

    /// The highest limit that can have been in force at some time between two; `None` when there
    /// may have been none.
    pub(super) fn most(&self, action: ActionId, from: i64, to: i64) -> Option<u32> {
        let most = self.possible(action, from, to)?.map(most_of).max();
        most.filter(|most| *most < u32::MAX)
    }

    /// The lowest; `None` when nothing is known.
    pub(super) fn least(&self, action: ActionId, from: i64, to: i64) -> Option<u32> {
        self.possible(action, from, to)?.map(most_of).min()
    }

    fn possible(
        &self,
        action: ActionId,
        from: i64,
        to: i64,
    ) -> Option<impl Iterator<Item = &Change>> {
        let changes = self.changes.get(&action)?;
        let known = changes.iter().filter(|change| {
            let in_force = change.in_force_ns;
            in_force.is_some_and(|t| t <= from)
        });
        // What was carried out before this moment is replaced by then.
        let replaced = known.map(|change| change.asked_ns).max()?;
        let possible = changes.iter().filter(move |change| {
            change.asked_ns <= to && change.stored_ns.is_none_or(|stored| stored >= replaced)
        });
        Some(possible)
    }

    /// Whether an order can have been in force; true when nothing is known.
    fn may_order_by(&self, action: ActionId, order: OrderRule, from: i64, to: i64) -> bool {
        let possible = self.possible(action, from, to);
        possible.is_none_or(|mut changes| changes.any(|change| change.order == order))
    }
}

fn most_of(change: &Change) -> u32 {
    change.limit.unwrap_or(u32::MAX)
}

/// When the submission of each execution was first made.
pub(super) fn invoked(facts: &Facts) -> HashMap<ExecutionId, i64> {
    let requests = facts.requests.values();
    let known = requests.filter_map(|request| {
        let (id, _) = request.execution?;
        Some((id, request.invoked?.0))
    });
    known.collect()
}

pub(super) fn judge(
    facts: &Facts,
    rows: Option<&[FinalRow]>,
    judged: &mut Judged,
    broken: &mut Vec<Violation>,
) {
    judge_entries(facts, judged, broken);
    judge_orders(facts, judged, broken);
    if let Some(rows) = rows {
        judge_confirmed(facts, rows, judged, broken);
    }
}

/// Actions that may have inherited an order or priorities: what was asked for them says little.
fn completed(facts: &Facts) -> HashSet<ActionId> {
    let refs = facts.action_refs().into_iter();
    let refs = refs.filter(|(_, action_ref)| facts.policies.may_complete(action_ref));
    refs.map(|(id, _)| id).collect()
}

fn judge_entries(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    let names = facts.names();
    let completed = completed(facts);
    let mut entries: Vec<(ExecutionId, u32, &Request)> = facts
        .requests
        .values()
        .filter(|request| !request.differs)
        .filter_map(|request| {
            let (id, _) = request.execution?;
            let record = facts.execution(id)?.accepted?;
            Some((id, record, request))
        })
        .collect();
    entries.sort_unstable_by_key(|(id, ..)| *id);
    for (id, record, request) in entries {
        let (Some(queue), Some(known)) = (&request.queue, facts.execution(id)) else {
            continue;
        };
        let user = request.user.and_then(|user| names.get(&user).copied());
        if facts.policies.may_lower(user) {
            continue;
        }
        if known.action.is_some_and(|action| {
            facts.asked.sets_priorities(action) || completed.contains(&action)
        }) {
            continue;
        }
        judged.priorities += 1;
        let records = request.invoked.map(|(_, invoke)| invoke);
        let records = records.into_iter().chain([record]);
        if known.priority.is_some_and(|priority| priority != queue.1) {
            let what = format!(
                "execution {id} was asked for with priority {:?} and waits with {:?}",
                queue.1, known.priority
            );
            broken.push(violation(Promise::I3, what, records));
        } else if known.delayed && !request.delayed {
            let what = format!("execution {id} is held up, and nobody asked for that");
            broken.push(violation(Promise::I3, what, records));
        }
    }
}

fn judge_orders(facts: &Facts, judged: &mut Judged, broken: &mut Vec<Violation>) {
    if !facts.processes.all_ended_well("api") {
        return;
    }
    let (limits, invoked) = (Limits::of(&facts.asked), invoked(facts));
    let completed = completed(facts);
    let mut wrong: Vec<(ExecutionId, Attempt, OrderRule, u32)> = Vec::new();
    for ((id, attempt), grant) in &facts.grants {
        let Some(known) = facts.execution(*id) else {
            continue;
        };
        // Not since its acceptance, which is recorded when its owner hears that it is stored.
        let (Some(action), Some(from), Some(record)) =
            (known.action, invoked.get(id).copied(), known.accepted)
        else {
            continue;
        };
        if completed.contains(&action) {
            continue;
        }
        judged.orders += 1;
        if !limits.may_order_by(action, grant.order, from, grant.t_ns) {
            wrong.push((*id, *attempt, grant.order, record));
        }
    }
    wrong.sort_unstable();
    for (id, attempt, order, record) in wrong {
        let what = format!(
            "attempt {attempt} of execution {id} was granted by the order {order:?}, which nobody asked for"
        );
        broken.push(violation(Promise::I3, what, [record]));
    }
}

fn judge_confirmed(
    facts: &Facts,
    rows: &[FinalRow],
    judged: &mut Judged,
    broken: &mut Vec<Violation>,
) {
    let stored: HashSet<RequestId> = rows.iter().filter_map(|row| row.request_id).collect();
    let requests = facts.requests.values();
    // Of an action that there is not, nothing is stored; nor of what its client was told so.
    let known: HashSet<u32> = requests
        .filter(|request| request.execution.is_some())
        .filter_map(|request| request.queue.map(|(action_ref, _)| action_ref))
        .collect();
    let mut lost: Vec<(RequestId, u32)> = Vec::new();
    for (request_id, (_, record)) in &facts.asked.confirmed {
        let request = facts.requests.get(request_id);
        let Some(request) = request.filter(|request| request.fails == 0) else {
            continue;
        };
        if request.queue.is_some_and(|queue| known.contains(&queue.0)) {
            judged.confirms += 1;
            if !stored.contains(request_id) {
                lost.push((*request_id, *record));
            }
        }
    }
    lost.sort_unstable();
    for (request_id, record) in lost {
        let what = format!("request {request_id} was confirmed by the broker and is not stored");
        broken.push(violation(Promise::I1, what, [record]));
    }
}
