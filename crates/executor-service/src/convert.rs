//! Between what an owner decides on and what is stored or sent: the same things in other types,
//! so that neither a table nor a message decides what the decisions look like.

use std::sync::Arc;
use std::time::Duration;

use attune_bus::Topic;
use attune_core::{GroupKey, Moved, Outcome, QueueTotals, RequestId, Submission, WorkerId, millis};
use attune_executor::owner::Reported;
use attune_executor::partition::{
    Accepted, Answer, Completion, ForceRelease, Letter, OnReject, Submit,
};
use attune_executor::queue::Millis;
use attune_executor::stored::{
    Audit, Batch, Body, Change, End, KnownRequest, LoadedTo, Meter, MeterPlace, NewExecution,
    ObservedLease, PutBack, StoredExecution, StoredExecutor, StoredLease, StoredMeter, StoredSlot,
    StoredWords, WorkerEnd,
};
use attune_executor::{Broken, Violation};
use attune_messages::{encode, v1, v2};
use attune_secrets::Keyring;
use attune_store as store;
use attune_store::What;
use chrono::{DateTime, Utc};
use serde_json::json;
use uuid::Uuid;

/// A length of time in whole milliseconds.
pub(crate) fn span(time: Duration) -> Millis {
    Millis::try_from(millis(time)).unwrap_or(Millis::MAX)
}

/// A length of time from whole milliseconds; nothing when it is negative.
pub(crate) fn duration(span: Millis) -> Duration {
    Duration::from_millis(u64::try_from(span).unwrap_or(0))
}

fn new_execution(new: &NewExecution) -> store::NewExecution {
    store::NewExecution {
        id: new.id,
        action_id: new.action_id,
        request_id: new.request_id,
        digest: new.digest,
        submission: Arc::clone(&new.submission),
        status: new.status,
        attempt: new.attempt,
        grant_no: new.grant_no,
        demand: new.demand.as_deref().copied(),
        asker: new.asker,
        cancel_requested: new.cancel_requested,
        worker: new.worker,
    }
}

fn change(change: &Change) -> store::Update {
    store::Update {
        id: change.id,
        status: change.transition.map(|transition| transition.to()),
        attempt: change.attempt,
        grant_no: change.grant_no,
        cancel_requested: change.cancel_requested,
        put_back: change.put_back.as_deref().map(put_back),
        worker: change.worker,
        started: change.started.and_then(DateTime::from_timestamp_millis),
    }
}

fn put_back(put_back: &PutBack) -> store::PutBack {
    store::PutBack {
        not_before: put_back
            .not_before
            .and_then(DateTime::from_timestamp_millis),
        unbegun: put_back.unbegun,
        last_error: put_back.last_error.clone(),
        keeps_slot: put_back.keeps_slot,
    }
}

fn end(end: &End) -> store::End {
    store::End {
        id: end.id,
        outcome: Arc::clone(&end.outcome),
        ran: end.ran.map(duration),
    }
}

fn audit(audit: &Audit) -> store::NewAudit {
    match audit {
        Audit::ForceRelease {
            request_id,
            who,
            reason,
            execution_id,
            attempt,
            action_ref,
            worker,
            cancel_requested,
            status,
        } => store::NewAudit {
            request_id: *request_id,
            who: by_command(who),
            what: What::ForceRelease,
            target: execution_id.to_string(),
            reason: Some(reason.clone()),
            before: Some(json!({
                "action_ref": action_ref,
                "attempt": attempt,
                "worker": worker,
                "cancel_requested": cancel_requested,
            })),
            after: Some(json!({"status": status})),
        },
        Audit::ReleaseRefused {
            request_id,
            who,
            reason,
            execution_id,
            attempt,
        } => store::NewAudit {
            request_id: *request_id,
            who: by_command(who),
            what: What::ForceRelease,
            target: execution_id.to_string(),
            reason: Some(reason.clone()),
            before: Some(json!({"attempt": attempt})),
            after: Some(json!({"refused": "the attempt held no slot"})),
        },
        Audit::Violation(violation) => violation_audit(violation),
    }
}

/// Who asks by a command on the bus, as the command says.
fn by_command(who: &str) -> store::Actor {
    store::Actor {
        name: who.to_owned(),
        origin: store::Origin {
            via: Some(store::Via::Amqp),
            ..store::Origin::default()
        },
    }
}

fn violation_audit(violation: &Violation) -> store::NewAudit {
    let what = match violation.broken {
        Broken::Order => What::OrderViolation,
        Broken::Limit => What::LimitViolation,
    };
    let Violation {
        owner,
        action_id,
        executions,
        attempt,
        found_at,
        ..
    } = violation;
    let key = format!(
        "{} {owner} {action_id} {executions:?} {attempt} {found_at}",
        what.name()
    );
    store::NewAudit {
        request_id: RequestId::from_key(&key),
        who: store::Actor::system(owner.clone()),
        what,
        target: violation.action_ref.clone(),
        reason: Some(violation.words.clone()),
        before: None,
        after: Some(json!({
            "executions": executions,
            "attempt": attempt,
            "found_at_ms": found_at,
            "queue": violation.stats,
        })),
    }
}

/// A batch as the store takes it.
pub(crate) fn batch(batch: &Batch, secrets: &Keyring) -> store::Batch {
    let totals = batch.totals.iter();
    let totals = totals.map(|(_, id, totals)| (*id, *totals));
    let instant = batch.instant.iter();
    store::Batch {
        owner: batch.owner,
        at: DateTime::from_timestamp_millis(batch.at).unwrap_or_default(),
        fences: batch.fences.clone(),
        inserts: batch.inserts.iter().map(new_execution).collect(),
        instant: instant
            .map(|(new, outcome)| (new_execution(new), Arc::clone(outcome)))
            .collect(),
        updates: batch.changes.iter().map(change).collect(),
        moves: batch.moves.iter().map(moved).collect(),
        ends: batch.ends.iter().map(end).collect(),
        progress: batch.progress.clone(),
        policies: batch.policies.clone(),
        totals: totals.collect::<Vec<(_, QueueTotals)>>(),
        meters: batch.meters.iter().map(meter).collect(),
        audit: batch.audit.iter().map(audit).collect(),
        letters: batch
            .letters
            .iter()
            .map(|(_, of)| letter(of, secrets))
            .collect(),
    }
}

fn moved(moved: &Moved) -> store::MovedExecution {
    store::MovedExecution {
        id: moved.id,
        priority: moved.priority,
        front: moved.front,
    }
}

fn meter(meter: &Meter) -> store::Meter {
    store::Meter {
        partition: meter.partition,
        place: meter_place(meter.place.clone()),
        state: meter.state.clone(),
        expires_at: DateTime::from_timestamp_millis(meter.expires_at)
            .unwrap_or(DateTime::<Utc>::MAX_UTC),
    }
}

pub(crate) fn meter_place(place: MeterPlace) -> store::MeterPlace {
    store::MeterPlace {
        limit_id: place.limit_id,
        key: place.key.0,
    }
}

pub(crate) fn counted_to(place: store::MeterPlace) -> MeterPlace {
    MeterPlace {
        limit_id: place.limit_id,
        key: GroupKey(place.key),
    }
}

pub(crate) fn stored_meter(row: store::MeterRow) -> StoredMeter {
    StoredMeter {
        place: counted_to(row.place),
        state: row.state,
        // Within the millisecond that begins with this.
        written_at: row.written_at.timestamp_millis() + 1,
    }
}

/// A letter as the collector would keep it, had it come as a message. The same submission is the
/// same letter, however often it is asked for.
fn letter(letter: &Letter, secrets: &Keyring) -> store::NewDeadLetter {
    let mut submission = Submission::clone(&letter.submission);
    submission.request_id = Some(letter.request_id);
    let key = format!("dead letter of {} {}", letter.request_id, letter.digest);
    let RequestId(message_id) = RequestId::from_key(&key);
    let body = encode(
        message_id,
        Utc::now(),
        &[v1::EnforcementCreated(submission)],
    );
    store::NewDeadLetter {
        message_id,
        reason: letter.reject.to_string(),
        source: Topic::Enforcements.routing_key(),
        bytes: body.len() as u64,
        body: secrets.seal_message(body),
        // Where the broker vouches for users, the submission names it as `requested_by`.
        sender: None,
    }
}

pub(crate) fn body(body: store::GrantedBody) -> Body {
    Body {
        id: body.id,
        parameters: body.parameters,
        timeout_seconds: body.timeout_seconds,
        trace: body.trace,
    }
}

pub(crate) fn known(known: store::KnownRequest) -> KnownRequest {
    KnownRequest {
        request_id: known.request_id,
        execution_id: known.execution_id,
        digest: known.digest,
        status: known.status,
    }
}

pub(crate) fn execution(row: store::ActiveRow) -> StoredExecution {
    StoredExecution {
        id: row.id,
        action_id: row.action_id,
        priority: row.priority,
        status: row.status,
        attempt: row.attempt,
        grant_no: row.grant_no,
        unbegun: row.unbegun,
        retried: row.retried,
        created: row.created.timestamp_millis(),
        not_before: row.not_before.map(|time| time.timestamp_millis()),
        cancel_requested: row.cancel_requested,
        front: row.front,
        demand: row.demand,
        asker: row.asker,
        kept_until: row.kept_until.map(|time| time.timestamp_millis()),
        worker: row.worker,
    }
}

pub(crate) fn words(words: store::ExecutionWords) -> StoredWords {
    StoredWords {
        id: words.id,
        requested_by: words.requested_by,
        group: words.group,
        labels: words.labels,
        parameters: words.parameters,
    }
}

/// What operations go by, and nothing else.
pub(crate) fn labels(labels: store::ExecutionLabels) -> StoredWords {
    StoredWords {
        id: labels.id,
        requested_by: labels.requested_by,
        group: None,
        labels: labels.labels,
        parameters: Box::default(),
    }
}

pub(crate) fn active_place(place: LoadedTo) -> store::ActivePlace {
    store::ActivePlace {
        action_id: place.action_id,
        created: DateTime::from_timestamp_micros(place.created).unwrap_or_default(),
        id: place.id,
    }
}

pub(crate) fn loaded_to(place: store::ActivePlace) -> LoadedTo {
    LoadedTo {
        action_id: place.action_id,
        created: place.created.timestamp_micros(),
        id: place.id,
    }
}

pub(crate) fn slot(row: store::SlotRow) -> StoredSlot {
    StoredSlot {
        id: row.id,
        action_id: row.action_id,
        priority: row.priority,
        created: row.created.timestamp_millis(),
        attempt: row.attempt,
        grant_no: row.grant_no,
        unbegun: row.unbegun,
        status: row.status,
        worker: row.worker,
        worker_over: row.worker_over,
        never_begun: false,
        requested_at: row.requested_at.unwrap_or(row.created).timestamp_millis(),
        running_for: row.running_for.map(span),
        cancel_requested: row.cancel_requested,
        front: row.front,
        demand: row.demand,
        asker: row.asker,
        kept_until: row.kept_until.map(|time| time.timestamp_millis()),
    }
}

pub(crate) fn lease(lease: store::Lease) -> StoredLease {
    StoredLease {
        partition: lease.partition,
        holder: lease.holder,
        epoch: lease.epoch,
        renewals: lease.renewals,
        ttl: span(lease.ttl),
        wanted_owner: lease.wanted_owner,
    }
}

pub(crate) fn observed(lease: ObservedLease) -> store::ObservedLease {
    store::ObservedLease {
        partition: lease.partition,
        epoch: lease.epoch,
        renewals: lease.renewals,
    }
}

pub(crate) fn executor(row: store::ExecutorRow) -> StoredExecutor {
    StoredExecutor {
        executor: row.executor,
        renewals: row.renewals,
        live: !row.remaining.is_zero(),
        cut_off: row.cut_off,
    }
}

pub(crate) fn worker_end(end: store::WorkerEnd) -> WorkerEnd {
    WorkerEnd {
        worker: end.worker,
        pool: end.pool,
        user: end.broker_user,
        slots: end.slots,
        renewals: end.renewals,
        ttl: span(end.ttl),
        ended: end.ended,
        draining: end.draining,
        gone: end.gone,
        begun: end.begun.map(|begun| Arc::new(begun.into_iter().collect())),
    }
}

pub(crate) fn submit(request_id: RequestId, item: v1::Submit) -> Submit {
    let on_reject = match item.on_reject {
        v1::OnReject::Answer => OnReject::Answer,
        v1::OnReject::Record => OnReject::Record,
    };
    Submit {
        wait_bound: item.wait_bound,
        ..Submit::new(request_id, item.submission, on_reject)
    }
}

/// What a worker says of how long something has run counts as no more than this, in milliseconds: a day more than
/// the longest `timeout_seconds`. From a clock that was set, or anybody, comes what lies before all calendars.
const LONGEST_RUN: Millis = 31 * 24 * 3600 * 1000;

/// A completion of which it is known who has run it.
pub(crate) fn completion(item: v1::Completion) -> Option<Completion> {
    let times = item.started_at.zip(item.finished_at);
    let ran = times.map(|(from, to)| (to - from).num_milliseconds().clamp(0, LONGEST_RUN));
    Some(Completion {
        worker: item.worker?,
        user: item.broker_user.map(Arc::from),
        ran,
        execution_id: item.execution_id,
        attempt: item.attempt,
        action_id: item.action_id,
        outcome: Arc::new(Outcome {
            status: item.status,
            code: item.code,
            result: item.result,
            error: item.error,
            exit_code: item.exit_code,
            stdout: item.stdout,
            stderr: item.stderr,
        }),
    })
}

/// What a worker has said.
pub(crate) fn report(report: v2::WorkerReport, user: Option<&Arc<str>>) -> Reported {
    let lacks_keys = report.returned.iter().filter_map(|it| {
        // Who is no worker of this system may say anything.
        let id = it
            .lacks_key
            .as_deref()
            .filter(|id| attune_secrets::is_key_id(id))?;
        Some(((it.execution_id, it.attempt), Arc::from(id)))
    });
    let lacks_keys = lacks_keys.collect();
    let returned = report.returned.into_iter();
    let returned = returned.map(|it| ((it.execution_id, it.attempt), Arc::from(it.why)));
    let started = report.started.into_iter();
    let started = started.map(|it| {
        let age = Millis::try_from(it.age_ms).unwrap_or(LONGEST_RUN);
        let age = age.min(LONGEST_RUN);
        ((it.execution_id, it.attempt), age)
    });
    Reported {
        worker: report.worker,
        user: user.cloned(),
        elsewhere: report.elsewhere,
        returned: returned.collect(),
        lacks_keys,
        started: started.collect(),
        resync: report.resync,
    }
}

/// Who says that it is there. A message that cannot be read is a hint to look, too.
pub(crate) fn hello(body: &[u8], max_message_bytes: usize) -> Vec<WorkerId> {
    let said = attune_messages::decode_batch::<v2::WorkerHello>(body, max_message_bytes);
    let said = said.unwrap_or_default().into_iter();
    said.map(|hello| hello.worker).collect()
}

pub(crate) fn force_release(item: v1::ForceRelease) -> ForceRelease {
    ForceRelease {
        request_id: item.request_id,
        execution_id: item.execution_id,
        attempt: item.attempt,
        who: item.who,
        reason: item.reason,
        worker: item.worker,
        never_begun: item.never_begun,
    }
}

pub(crate) fn answer(message_id: Uuid, answer: Answer) -> v1::Answer {
    let explanation = answer.explanation.map(Arc::unwrap_or_clone).map(Box::new);
    let accepted = |accepted: Accepted| v1::Accepted {
        execution_id: accepted.execution_id,
        status: accepted.status,
        position: accepted.position,
        repeated: accepted.repeated,
        priority: accepted.priority,
        explanation,
    };
    v1::Answer {
        request_id: answer.request_id,
        message_id: Some(message_id),
        outcome: match answer.outcome {
            Ok(it) => v1::AnswerOutcome::Accepted(accepted(it)),
            Err(reject) => v1::AnswerOutcome::Rejected(reject),
        },
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
