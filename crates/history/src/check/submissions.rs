//! What clients were told (I1), and the order as they see it (I3).
//!
//! *I1.* With the rows of the store: what a client was told is accepted, and what an owner
//! recorded as accepted, is among them, not as a refusal, and has ended; what was surely refused is not; nothing is
//! there that nobody asked for (when clients recorded what they asked for). What the API answered
//! counts as told, also when its client did not wait for it. Without the rows: what was accepted
//! has an end among the records, unless its partition changed hands, so that the record may be
//! lost. In both: one request becomes one execution. A request is surely refused when every time
//! that it was made was refused, as its client was told or as the API knew; what no client
//! recorded may have been made at other times. `rejected` rows record refusals and are not
//! accepted executions.
//!
//! *I3, in real time.* When a client was told that A is accepted before anybody asked for B, of
//! the same action and priority, then A stands before B.

use std::collections::{HashMap, HashSet};

use attune_core::{ExecutionId, Priority, RequestId, Status};

use super::facts::Facts;
use super::request::Request;
use super::{FinalRow, Judged, Promise, Violation, violation};

pub(super) fn judge(
    facts: &Facts,
    rows: Option<&[FinalRow]>,
    judged: &mut Judged,
    broken: &mut Vec<Violation>,
) {
    let requests = facts.requests.values();
    judged.refusals = requests
        .filter(|request| is_refused_by_api(request))
        .count() as u64;
    match rows {
        Some(rows) => judge_rows(facts, rows, broken),
        None => judge_ends(facts, broken),
    }
    judge_refusals(facts, rows, broken);
    judge_order(facts, broken);
}

/// The records that say that an execution was accepted.
fn acceptance(facts: &Facts, id: ExecutionId) -> Option<Vec<u32>> {
    let execution = facts.execution(id)?;
    let owner = execution
        .accepted
        .filter(|_| execution.status_accepted != Some(Status::Rejected));
    let records: Vec<u32> = execution.told.into_iter().chain(owner).collect();
    (!records.is_empty()).then_some(records)
}

/// Executions that were accepted, by rising id, so that reports are the same each time.
fn accepted(facts: &Facts) -> Vec<(ExecutionId, Vec<u32>)> {
    let mut accepted: Vec<_> = facts
        .executions
        .keys()
        .filter_map(|id| Some((*id, acceptance(facts, *id)?)))
        .collect();
    accepted.sort_unstable();
    accepted
}

fn judge_rows(facts: &Facts, rows: &[FinalRow], broken: &mut Vec<Violation>) {
    let stored: HashMap<ExecutionId, &FinalRow> = rows.iter().map(|row| (row.id, row)).collect();
    for (id, records) in accepted(facts) {
        let what = match stored.get(&id) {
            None => format!("execution {id} was accepted and is not in the store"),
            // A row that holds a slot in the end is for I4 to tell.
            Some(row) if row.status == Status::Queued => {
                format!("execution {id} was accepted and still waits in the end")
            }
            Some(row) if row.status == Status::Rejected => {
                format!("execution {id} was accepted and is stored as rejected")
            }
            Some(_) => continue,
        };
        broken.push(violation(Promise::I1, what, records));
    }
    judge_names(facts, &stored, broken);
    let clients_record = facts.requests.values().any(|request| request.invokes > 0);
    let mut seen: HashMap<RequestId, ExecutionId> = HashMap::new();
    for row in rows {
        let Some(request_id) = row.request_id else {
            continue;
        };
        let id = row.id;
        let request = facts.requests.get(&request_id);
        if let Some(other) = seen.insert(request_id, id) {
            let what = format!("request {request_id} is stored as execution {other} and {id}");
            let records = request.and_then(|request| request.execution);
            broken.push(violation(
                Promise::I1,
                what,
                records.map(|(_, record)| record),
            ));
        }
        let asked = request.is_some_and(|request| request.invokes > 0 || request.ok.is_some());
        if clients_record && !asked && row.status != Status::Rejected {
            let what = format!("execution {id} is in the store and nobody asked for it");
            let records = acceptance(facts, id).unwrap_or_default();
            broken.push(violation(Promise::I1, what, records));
        }
    }
}

/// What a request became is stored under that request.
fn judge_names(
    facts: &Facts,
    stored: &HashMap<ExecutionId, &FinalRow>,
    broken: &mut Vec<Violation>,
) {
    let mut misnamed: Vec<_> = facts
        .requests
        .iter()
        .filter_map(|(request_id, request)| {
            let (id, record) = request.execution?;
            let other = stored.get(&id)?.request_id?;
            (other != *request_id).then_some((id, *request_id, other, record))
        })
        .collect();
    misnamed.sort_unstable();
    for (id, request_id, other, record) in misnamed {
        let what = format!("request {request_id} became execution {id}, stored for {other}");
        broken.push(violation(Promise::I1, what, [record]));
    }
}

fn judge_ends(facts: &Facts, broken: &mut Vec<Violation>) {
    for (id, records) in accepted(facts) {
        let ended = facts
            .execution(id)
            .is_some_and(|execution| execution.ended.is_some());
        if !ended && !facts.may_have_lost_the_end(id) {
            let what = format!("execution {id} was accepted and no end of it is recorded");
            broken.push(violation(Promise::I1, what, records));
        }
    }
}

/// Whether every time that a request was made, it was refused.
fn is_refused(request: &Request) -> bool {
    let told = request.fails > 0 && request.fails >= request.invokes;
    told || is_refused_by_api(request) || is_refused_at_last(request)
}

/// Whether an owner had no room for it when it was made for the last time. Copies are decided in the
/// order in which the broker got them, so that those whose outcome was unknown were refused before.
/// Not judged where a call may have been under way beside the last one, or somebody was told of an
/// execution.
fn is_refused_at_last(request: &Request) -> bool {
    let last = request
        .last_answered
        .filter(|(_, had_no_room)| *had_no_room);
    let is_last = last.is_some_and(|(t_ns, _)| {
        let has_asked_since = request.last_invoked.is_none_or(|asked| asked > t_ns);
        let may_have_asked = request
            .last_given_up
            .is_some_and(|given_up| given_up > t_ns);
        !has_asked_since && !may_have_asked
    });
    is_last && request.ok.is_none() && request.answers >= request.invokes
}

/// The same as the API knew it, whatever its client was told.
fn is_refused_by_api(request: &Request) -> bool {
    let answers = request.oks + request.fails + request.infos;
    let asked = request.invokes.max(answers);
    asked > 0 && request.refusals >= asked && !request.answered_otherwise
}

fn judge_refusals(facts: &Facts, rows: Option<&[FinalRow]>, broken: &mut Vec<Violation>) {
    let stored: HashSet<RequestId> = rows
        .into_iter()
        .flatten()
        .filter(|row| row.status != Status::Rejected)
        .filter_map(|row| row.request_id)
        .collect();
    let mut refused: Vec<(&RequestId, &Request)> = facts
        .requests
        .iter()
        .filter(|(_, request)| is_refused(request))
        .collect();
    refused.sort_unstable_by_key(|(id, _)| **id);
    for (request_id, request) in refused {
        let became = request.execution.filter(|(id, _)| {
            let known = facts.execution(*id).and_then(|known| known.status_accepted);
            known != Some(Status::Rejected)
        });
        if became.is_none() && !stored.contains(request_id) {
            continue;
        }
        let what = format!("request {request_id} was refused and is an execution all the same");
        let records = request.failed.into_iter().chain(request.refused);
        let records = records.chain(became.map(|(_, record)| record));
        broken.push(violation(Promise::I1, what, records));
    }
}

/// When, whether it is an acceptance, which execution, which record. What happens at the same
/// instant is not one after the other: requests come first.
type Step = (i64, bool, ExecutionId, u32);

fn judge_order(facts: &Facts, broken: &mut Vec<Violation>) {
    let mut queues: HashMap<(u32, Priority), Vec<Step>> = HashMap::new();
    for request in facts.requests.values() {
        let (Some(queue), Some((id, _))) = (request.queue, request.execution) else {
            continue;
        };
        let steps = queues.entry(queue).or_default();
        steps.extend(request.invoked.map(|(t, record)| (t, false, id, record)));
        steps.extend(request.ok.map(|(t, record)| (t, true, id, record)));
    }
    for mut steps in queues.into_values() {
        steps.sort_unstable();
        let mut last: Option<(ExecutionId, u32)> = None;
        for (_, told, id, record) in steps {
            if told {
                last = last.max(Some((id, record)));
            } else if let Some((before, before_record)) = last
                && before > id
            {
                let what = format!(
                    "execution {before} was accepted before {id} was asked for, and stands behind it"
                );
                broken.push(violation(Promise::I3, what, [before_record, record]));
            }
        }
    }
}
