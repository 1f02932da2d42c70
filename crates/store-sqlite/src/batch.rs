//! A batch in the form in which the statements take it: one JSON array for each list. Where a list may be long,
//! its rows are arrays too, in the order of their [`columns`].

use attune_core::{
    ActionId, EndCode, OperationId, OperationProgress, Outcome, PartitionId, QueueTotals, Status,
    WorkerId,
};
use attune_store::{
    Batch, End, Meter, MovedExecution, NewAudit, NewDeadLetter, NewExecution, Update, stored_place,
    stored_state,
};
use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::columns::{Places, columns};
use crate::rows::{demand_text, digits, list, list_unless_empty, text_of, time_text};

/// Everything of a [`Batch`], owned, so that it can move into the task that writes it. `None` is
/// an empty list, for which no statement runs.
#[derive(Debug)]
pub(crate) struct BatchLists {
    pub(crate) owner: String,
    /// When it was decided.
    pub(crate) at: String,
    pub(crate) fences: Option<String>,
    pub(crate) inserts: Option<String>,
    pub(crate) requests: Option<String>,
    pub(crate) instant: Option<String>,
    pub(crate) grants: Option<String>,
    /// How many executions `grants` names.
    pub(crate) grant_count: usize,
    pub(crate) revocations: Option<String>,
    pub(crate) marks: Option<String>,
    pub(crate) starts: Option<String>,
    pub(crate) put_back: Option<String>,
    pub(crate) moves: Option<String>,
    pub(crate) ends: Option<String>,
    /// The ids in `ends`.
    pub(crate) end_ids: String,
    pub(crate) totals: Option<String>,
    pub(crate) progress: Option<String>,
    pub(crate) policies: Option<String>,
    pub(crate) meters: Option<String>,
    pub(crate) audit: Option<String>,
    pub(crate) letters: Vec<NewDeadLetter>,
}

columns! {
    struct ExecutionRow<'a> {
        id: i64,
        action: i64,
        action_ref: &'a str,
        priority: u8,
        status: Status,
        attempt: i32,
        grant_no: Option<i64>,
        request_id: String,
        enforcement_id: Option<&'a str>,
        requested_by: Option<&'a str>,
        group_key: Option<&'a str>,
        /// JSON inside of a JSON string, so that it is stored to the letter.
        labels: String,
        /// As `labels`.
        parameters: &'a str,
        not_before: Option<String>,
        timeout_seconds: Option<u32>,
        requeue_of: Option<i64>,
        /// In hexadecimal digits.
        demand: Option<String>,
        cancel_requested: bool,
        worker: Option<String>,
        asker: Option<i64>,
        traceparent: Option<String>,
    }
}

columns! {
    /// Comes after the columns of what has ended.
    struct OutcomeRow<'a> {
        /// As `labels`.
        result: Option<&'a str>,
        error: Option<&'a str>,
        exit_code: Option<i32>,
        stdout: Option<&'a str>,
        stderr: Option<&'a str>,
        end_code: Option<&'static str>,
    }
}

columns! {
    struct EndRow {
        id: i64,
        status: Status,
        began: Option<String>,
    }
}

columns! {
    struct RequestRow {
        request_id: String,
        execution_id: i64,
        digest: i64,
    }
}

columns! {
    struct UpdateRow {
        id: i64,
        attempt: i32,
        grant_no: Option<i64>,
        cancel_requested: bool,
        worker: Option<String>,
        status: Status,
    }
}

columns! {
    struct StartRow {
        id: i64,
        attempt: i32,
        started_at: String,
    }
}

columns! {
    struct TotalsRow {
        action: i64,
        enqueued: u64,
        completed: u64,
        cancelled: u64,
        expired: u64,
    }
}

#[derive(Serialize)]
struct PutBackRow<'a> {
    id: i64,
    attempt: i32,
    not_before: Option<String>,
    unbegun: u16,
    last_error: Option<&'a str>,
    keeps_slot: bool,
}

#[derive(Serialize)]
struct MoveRow {
    id: i64,
    priority: u8,
    /// As its column holds it.
    front: u8,
}

#[derive(Serialize)]
struct ProgressRow {
    operation: i64,
    partition: u16,
    upto: Option<i64>,
    cursor: Option<i64>,
    matched: u64,
    done: u64,
    skipped: u64,
    state: &'static str,
}

#[derive(Serialize)]
struct AuditRow<'a> {
    request_id: String,
    who: &'a str,
    what: &'a str,
    target: &'a str,
    reason: Option<&'a str>,
    /// JSON inside of a JSON string.
    before: Option<String>,
    after: Option<String>,
    /// The columns of it.
    origin: [Option<String>; 4],
}

#[derive(Serialize)]
struct MeterText<'a> {
    partition: u16,
    limit_id: &'a str,
    key: String,
    state: String,
    expires_at: String,
}

/// A partition and an epoch, as a fence and as what is renewed or given up.
#[derive(Serialize)]
pub(crate) struct HeldRow {
    pub(crate) partition: u16,
    pub(crate) epoch: i64,
}

/// What an owner says about a partition of its own.
#[derive(Serialize)]
pub(crate) struct TroubleRow<'a> {
    pub(crate) partition: u16,
    pub(crate) epoch: i64,
    pub(crate) trouble: Option<&'a str>,
    /// In seconds.
    pub(crate) lasted: Option<f64>,
}

/// A lease as it was observed.
#[derive(Serialize)]
pub(crate) struct ObservedRow {
    pub(crate) partition: u16,
    pub(crate) epoch: i64,
    pub(crate) renewals: i64,
}

/// The lease of a worker as it was observed.
#[derive(Serialize)]
pub(crate) struct ObservedWorker {
    pub(crate) worker: String,
    pub(crate) renewals: i64,
}

impl BatchLists {
    pub(crate) fn of(batch: &Batch) -> Self {
        let updates = |status: Option<Status>| -> Vec<Places<UpdateRow>> {
            let updates = batch.updates.iter();
            updates
                .filter(|update| !update.grants() && update.status == status)
                .map(update_row)
                .collect()
        };
        let grants = batch.updates.iter().filter(|update| update.grants());
        let grants: Vec<_> = grants.map(update_row).collect();
        let fences = batch.fences.iter().map(|(partition, epoch)| HeldRow {
            partition: partition.0,
            epoch: epoch.0,
        });
        let instant = batch.instant.iter();
        let accepted = batch
            .inserts
            .iter()
            .chain(instant.clone().map(|(new, _)| new));
        Self {
            owner: batch.owner.to_string(),
            at: time_text(batch.at),
            fences: list_unless_empty(fences.collect()),
            inserts: list_unless_empty(
                batch
                    .inserts
                    .iter()
                    .map(|new| Places(row(new, new.status)))
                    .collect(),
            ),
            requests: list_unless_empty(accepted.map(request_row).collect()),
            instant: list_unless_empty(
                instant
                    .map(|(new, outcome)| Places((row(new, outcome.status), outcome_row(outcome))))
                    .collect(),
            ),
            grant_count: grants.len(),
            grants: list_unless_empty(grants),
            revocations: list_unless_empty(updates(Some(Status::Queued))),
            marks: list_unless_empty(updates(None)),
            starts: list_unless_empty(batch.updates.iter().filter_map(start_row).collect()),
            put_back: list_unless_empty(batch.updates.iter().filter_map(put_back_row).collect()),
            ends: list_unless_empty(
                batch
                    .ends
                    .iter()
                    .map(|end| end_row(end, batch.at))
                    .collect(),
            ),
            end_ids: list(batch.ends.iter().map(|end| end.id)),
            totals: list_unless_empty(
                batch
                    .totals
                    .iter()
                    .map(|(action, totals)| totals_row(*action, totals))
                    .collect(),
            ),
            moves: list_unless_empty(batch.moves.iter().map(move_row).collect()),
            progress: list_unless_empty(batch.progress.iter().map(progress_row).collect()),
            policies: list_unless_empty(batch.policies.iter().map(policies_row).collect()),
            meters: list_unless_empty(batch.meters.iter().map(meter_row).collect()),
            audit: (!batch.audit.is_empty()).then(|| audit_list(&batch.audit)),
            letters: batch.letters.clone(),
        }
    }
}

/// An execution that is accepted in this status.
fn row(new: &NewExecution, status: Status) -> ExecutionRow<'_> {
    let submission = &new.submission;
    ExecutionRow {
        id: new.id.0,
        action: new.action_id.0,
        action_ref: &submission.action_ref,
        priority: submission.priority.unwrap_or_default().rank(),
        status,
        attempt: new.attempt.0,
        grant_no: new.grant_no,
        request_id: new.request_id.to_string(),
        enforcement_id: submission.enforcement_id.as_deref(),
        requested_by: submission.requested_by.as_deref(),
        group_key: submission.group.as_deref(),
        labels: serde_json::to_string(&submission.labels).expect("labels have only text keys"),
        parameters: submission.parameters.get(),
        not_before: submission.not_before.map(time_text),
        timeout_seconds: submission.timeout_seconds,
        requeue_of: submission.requeue_of.map(|of| of.0),
        demand: new.demand.as_ref().map(demand_text),
        cancel_requested: new.cancel_requested,
        worker: worker_text(new.worker),
        asker: new.asker.map(|asker| asker.0),
        traceparent: submission.trace.map(|trace| trace.to_string()),
    }
}

fn meter_row(meter: &Meter) -> MeterText<'_> {
    MeterText {
        partition: meter.partition.0,
        limit_id: &meter.place.limit_id,
        key: digits(&meter.place.key),
        state: digits(&meter.state),
        expires_at: time_text(meter.expires_at),
    }
}

fn outcome_row(outcome: &Outcome) -> OutcomeRow<'_> {
    OutcomeRow {
        result: outcome.result.as_deref().map(|result| result.get()),
        error: outcome.error.as_deref(),
        exit_code: outcome.exit_code,
        stdout: outcome.stdout.as_deref(),
        stderr: outcome.stderr.as_deref(),
        end_code: outcome.code.map(EndCode::as_str),
    }
}

fn end_row(end: &End, at: DateTime<Utc>) -> Places<(EndRow, OutcomeRow<'_>)> {
    let row = EndRow {
        id: end.id.0,
        status: end.outcome.status,
        began: end.began(at).map(time_text),
    };
    Places((row, outcome_row(&end.outcome)))
}

fn request_row(new: &NewExecution) -> Places<RequestRow> {
    Places(RequestRow {
        request_id: new.request_id.to_string(),
        execution_id: new.id.0,
        digest: new.digest,
    })
}

fn totals_row(action: ActionId, totals: &QueueTotals) -> Places<TotalsRow> {
    Places(TotalsRow {
        action: action.0,
        enqueued: totals.enqueued,
        completed: totals.completed,
        cancelled: totals.cancelled,
        expired: totals.expired,
    })
}

/// Entries as `insert_audit.sql` takes them.
pub(crate) fn audit_list(entries: &[NewAudit]) -> String {
    list(entries.iter().map(audit_row))
}

fn audit_row(entry: &NewAudit) -> AuditRow<'_> {
    AuditRow {
        request_id: entry.request_id.to_string(),
        who: &entry.who,
        what: entry.what.name(),
        target: &entry.target,
        reason: entry.reason.as_deref(),
        before: entry.before.as_ref().map(text_of),
        after: entry.after.as_ref().map(text_of),
        origin: entry.who.origin.columns(),
    }
}

fn put_back_row(update: &Update) -> Option<PutBackRow<'_>> {
    let put_back = update.put_back.as_ref()?;
    Some(PutBackRow {
        id: update.id.0,
        attempt: update.attempt.0,
        not_before: put_back.not_before.map(time_text),
        unbegun: put_back.unbegun,
        last_error: put_back.last_error.as_deref(),
        keeps_slot: put_back.keeps_slot,
    })
}

fn move_row(moved: &MovedExecution) -> MoveRow {
    MoveRow {
        id: moved.id.0,
        priority: moved.priority.rank(),
        front: moved.front.into(),
    }
}

fn progress_row(
    (partition, operation, progress): &(PartitionId, OperationId, OperationProgress),
) -> ProgressRow {
    ProgressRow {
        operation: operation.0,
        partition: partition.0,
        upto: stored_place(*partition, progress.upto),
        cursor: stored_place(*partition, progress.cursor),
        matched: progress.matched,
        done: progress.done,
        skipped: progress.skipped,
        state: stored_state(progress),
    }
}

#[derive(Serialize)]
struct PoliciesRow {
    partition: u16,
    set_version: i64,
}

fn policies_row((partition, set_version): &(PartitionId, i64)) -> PoliciesRow {
    PoliciesRow {
        partition: partition.0,
        set_version: *set_version,
    }
}

fn update_row(update: &Update) -> Places<UpdateRow> {
    Places(UpdateRow {
        id: update.id.0,
        attempt: update.attempt.0,
        grant_no: update.grant_no,
        cancel_requested: update.cancel_requested,
        worker: worker_text(update.worker),
        status: match update.grants_ahead() {
            true => Status::Queued,
            false => Status::Requested,
        },
    })
}

fn start_row(update: &Update) -> Option<Places<StartRow>> {
    Some(Places(StartRow {
        id: update.id.0,
        attempt: update.attempt.0,
        started_at: time_text(update.starts()?),
    }))
}

fn worker_text(worker: Option<WorkerId>) -> Option<String> {
    worker.map(|worker| worker.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::Columns as _;
    use crate::sql;

    /// A place that a statement takes for another column would store one value in the place of another.
    #[test]
    fn statements_and_rows_agree_on_the_places() {
        let names_of = [
            (sql::INSERT_ACTIVE, ExecutionRow::names()),
            (
                sql::INSERT_INSTANT,
                <(ExecutionRow<'_>, OutcomeRow<'_>)>::names(),
            ),
            (sql::END_INTO_HISTORY, <(EndRow, OutcomeRow<'_>)>::names()),
            (sql::INSERT_REQUEST, RequestRow::names()),
            (sql::GRANT, UpdateRow::names()),
            (sql::REVOKE, UpdateRow::names()),
            (sql::MARK_CANCELLED, UpdateRow::names()),
            (sql::START, StartRow::names()),
            (sql::UPSERT_TOTALS, TotalsRow::names()),
        ];
        for (statement, names) in names_of {
            let mut places = 0;
            for taken in statement.split("value ->> '$[").skip(1) {
                let (place, name) = taken.split_once("]' AS ").unwrap();
                let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_'));
                let place: usize = place.parse().unwrap();
                assert_eq!(names[place], &name[..end.unwrap()], "{statement}");
                places += 1;
            }
            assert!(places > 0, "{statement}");
        }
        let body = sql::GRANTED_BODIES;
        assert!(body.contains("a.id = g.value ->> '$[0]'"), "{body}");
        assert!(body.contains("a.attempt = g.value ->> '$[1]'"), "{body}");
    }
}
