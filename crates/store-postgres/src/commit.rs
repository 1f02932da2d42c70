//! The commit: a batch as the parameters of `sql/commit.sql`.

use std::collections::HashSet;
use std::sync::Arc;

use attune_core::{Bug, EndCode, Epoch, ExecutionId, Outcome, PartitionId, Status, TraceParent};
use attune_store::{
    Batch, CommitError, Committed, End, GrantedBody, MAX_BODIES_BYTES, Meter, NewExecution,
    PutBack, StoreError, Update,
};
use chrono::{DateTime, Utc};
use serde_json::value::RawValue;
use sqlx::postgres::{PgArguments, PgExecutor, PgPool, PgRow};
use sqlx::{AssertSqlSafe, Row as _, SqlSafeStr as _};
use uuid::Uuid;

use crate::bind::Binds;
use crate::db::Db;
use crate::failure::{Failure, unreadable};
use crate::sessions::Purpose;
use crate::sql::{CommitOf, Part};
use crate::{audit, dead_letters, operations, policies, sql, text};

/// Stands for a grant without a number: a NULL would make its array slow to subscript.
const NO_NUMBER: i64 = i64::MIN;

/// Stands for a grant without a worker, likewise.
const NO_WORKER: Uuid = Uuid::nil();

/// Stands for an update that starts nothing, likewise; no clock shows it.
const NO_START: DateTime<Utc> = DateTime::UNIX_EPOCH;

/// How a batch is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Run {
    /// As if nothing of it were there.
    First,
    /// Something of it may be there: an earlier run of it, or a request id that two actions of
    /// different partitions use at the same moment.
    Again,
}

/// How a commit went, before the fences are compared.
#[derive(Default)]
struct Answer {
    held: Vec<i32>,
    /// Whom this run of the batch has granted a slot.
    granted: HashSet<i64>,
    committed: Committed,
}

impl Db {
    /// Writes a batch if every fence holds.
    pub(crate) async fn commit_batch(&self, batch: &Batch) -> Result<Committed, CommitError> {
        if let Some(partition) = unfenced(batch) {
            return Err(CommitError::Store(StoreError::Conflict(format!(
                "the batch writes to partition {partition}, which it has no fence for"
            ))));
        }
        let first = match self.duplicates.is_recent() {
            true => None,
            false => self.write(batch, Run::First).await?,
        };
        let answer = match first {
            Some(answer) => answer,
            None => {
                let words = "what is there already was not passed over";
                let again = self.write(batch, Run::Again).await?;
                again.ok_or_else(|| StoreError::Conflict(words.to_owned()))?
            }
        };
        let missing: Vec<PartitionId> = batch
            .fences
            .iter()
            .map(|(partition, _)| *partition)
            .filter(|partition| !answer.held.contains(&i32::from(partition.0)))
            .collect();
        if !missing.is_empty() && !Bug::NoFence.is_planted() {
            return Err(CommitError::Fenced(missing));
        }
        // Nobody waits for it.
        drop(self.letters_were_added(&batch.letters));
        let mut committed = answer.committed;
        let before = self.granted_before(batch, &answer.granted).await;
        committed.granted.extend(before.map_err(unknown)?);
        Ok(committed)
    }

    /// Writes a batch. Nothing when something of it is there already, which only the first run finds.
    async fn write(&self, batch: &Batch, run: Run) -> Result<Option<Answer>, StoreError> {
        let of = parts(batch, run);
        let parameters = parameters(batch, of)?;
        let text = sql::commit(of);
        let pool = self.commit();
        let beside = beside(batch)?;
        let fences = fences(batch).len();
        let duplicates = Arc::clone(&self.duplicates);
        self.run(Purpose::Commit, async move {
            let written = if beside.is_empty() {
                execute(&pool, text, parameters).await
            } else {
                execute_with(&pool, text, parameters, beside, fences).await
            };
            match written {
                Err(failure) if failure.is_duplicate() && run == Run::First => {
                    duplicates.note();
                    Ok(None)
                }
                written => written.map(Some),
            }
        })
        .await
    }

    /// The bodies of those grants of `batch` that were written by an earlier run of it, so that
    /// this run had nothing to change and nothing to return.
    async fn granted_before(
        &self,
        batch: &Batch,
        granted: &HashSet<i64>,
    ) -> Result<Vec<GrantedBody>, StoreError> {
        let grants = || batch.updates.iter().filter(|update| update.grants());
        if grants().count() == granted.len() {
            return Ok(Vec::new());
        }
        let missing: Vec<i64> = grants()
            .map(|update| update.id.0)
            .filter(|id| !granted.contains(id))
            .collect();
        let pool = self.commit();
        self.run(
            Purpose::Commit,
            async move { load_bodies(&pool, missing).await },
        )
        .await
    }
}

/// The error for a commit of which something failed after it was written: whoever gets it must
/// not believe that nothing was.
fn unknown(error: StoreError) -> StoreError {
    StoreError::Unavailable(Box::new(error))
}

/// A partition that the batch writes to without a fence: a mistake of the caller, which would
/// let a stale owner through if it were carried out.
fn unfenced(batch: &Batch) -> Option<PartitionId> {
    let mut fenced = [false; PartitionId::MAX_COUNT as usize];
    for (partition, _) in &batch.fences {
        if let Some(place) = fenced.get_mut(usize::from(partition.0)) {
            *place = true;
        }
    }
    let inserts = batch.inserts.iter().map(|new| new.id);
    let instant = batch.instant.iter().map(|(new, _)| new.id);
    let updates = batch.updates.iter().map(|update| update.id);
    let moves = batch.moves.iter().map(|moved| moved.id);
    let ends = batch.ends.iter().map(|end| end.id);
    let executions = inserts.chain(instant).chain(updates);
    let executions = executions.chain(moves).chain(ends);
    executions
        .map(ExecutionId::partition)
        .chain(batch.progress.iter().map(|(partition, ..)| *partition))
        .chain(batch.policies.iter().map(|(partition, _)| *partition))
        .chain(batch.meters.iter().map(|meter| meter.partition))
        .find(|partition| !fenced[usize::from(partition.0)])
}

/// The bodies of those of `ids` that wait or hold a slot, as far as they have [`MAX_BODIES_BYTES`].
pub(crate) async fn load_bodies(pool: &PgPool, ids: Vec<i64>) -> Result<Vec<GrantedBody>, Failure> {
    let rows = sqlx::query(sql::LOAD_BODIES)
        .bind(ids)
        .bind(MAX_BODIES_BYTES as i64)
        .fetch_all(pool)
        .await?;
    rows.iter().map(body).collect()
}

/// Entries for the audit log and dead letters are rare, and so are whoever is put back and what operators
/// do, so they are statements of their own, in one transaction with the round, and no burden to the
/// rounds that have none.
fn beside(batch: &Batch) -> Result<Vec<(&'static str, PgArguments)>, StoreError> {
    let mut beside = Vec::new();
    if let Some(put_back) = put_back(batch)? {
        beside.push((sql::PUT_BACK, put_back));
    }
    if let Some(moves) = operations::moves(batch)? {
        beside.push((sql::MOVE_EXECUTIONS, moves));
    }
    if let Some(policies) = policies::progress(batch)? {
        beside.push((sql::WRITE_POLICY_PROGRESS, policies));
    }
    if !batch.letters.is_empty() {
        let letters = dead_letters::parameters(&batch.letters)?;
        beside.push((sql::ADD_DEAD_LETTERS, letters));
    }
    // Last: from here on everybody else who has something to write down waits for the end of the transaction.
    if !batch.audit.is_empty() {
        beside.push((sql::ADD_AUDIT, audit::parameters(&batch.audit)?));
    }
    Ok(beside)
}

/// The parameters for those that are put back, if there are any.
fn put_back(batch: &Batch) -> Result<Option<PgArguments>, StoreError> {
    let updates = batch.updates.iter();
    let put_back = updates.filter_map(|update| Some((update, update.put_back.as_ref()?)));
    let put_back: Vec<(&Update, &PutBack)> = put_back.collect();
    if put_back.is_empty() {
        return Ok(None);
    }
    let mut binds = Binds::default();
    binds.column(&put_back, |(update, _)| update.id.0);
    binds.column(&put_back, |(update, _)| update.attempt.0);
    binds.column(&put_back, |(_, back)| back.not_before.map(text::time));
    binds.column(&put_back, |(_, back)| i32::from(back.unbegun));
    binds.column(&put_back, |(_, back)| {
        text::optional(back.last_error.as_ref())
    });
    binds.column(&put_back, |(_, back)| back.keeps_slot);
    binds.finish().map(Some)
}

/// Writes a round and, where every fence holds, what stands beside it.
async fn execute_with(
    pool: &PgPool,
    text: &'static str,
    parameters: PgArguments,
    beside: Vec<(&'static str, PgArguments)>,
    fences: usize,
) -> Result<Answer, Failure> {
    let mut transaction = pool.begin().await?;
    let answer = execute(&mut *transaction, text, parameters).await?;
    if answer.held.len() == fences {
        for (statement, parameters) in beside {
            sqlx::query_with(statement, parameters)
                .execute(&mut *transaction)
                .await?;
        }
    }
    transaction.commit().await?;
    Ok(answer)
}

async fn execute(
    connection: impl PgExecutor<'_>,
    text: &'static str,
    parameters: PgArguments,
) -> Result<Answer, Failure> {
    let mut statement = text.into_sql_str();
    if Bug::NoFence.is_planted() {
        // Writes whatever the fence has found.
        let fence = "count(*) = cardinality($2::integer[])";
        let unfenced = statement.as_str().replace(fence, "count(*) >= 0");
        statement = AssertSqlSafe(unfenced).into_sql_str();
    }
    let rows = sqlx::query_with(statement, parameters)
        .fetch_all(connection)
        .await?;
    // Whatever cannot be read here was written.
    read(&rows).map_err(|failure| match failure {
        Failure::Store(error) => Failure::Store(unknown(error)),
        Failure::Database(error) => Failure::Store(StoreError::Unavailable(Box::new(error))),
    })
}

fn read(rows: &[PgRow]) -> Result<Answer, Failure> {
    let mut answer = Answer::default();
    for row in rows {
        match row.try_get::<Option<i64>, _>(0)? {
            Some(id) => {
                answer.granted.insert(id);
                // Without its parameters it is one of too many.
                if row.try_get::<Option<&str>, _>(1)?.is_some() {
                    answer.committed.granted.push(body(row)?);
                }
            }
            None => {
                answer.held = row.try_get(3)?;
                let ended: i64 = row.try_get(4)?;
                answer.committed.ended = ended.unsigned_abs();
            }
        }
    }
    Ok(answer)
}

/// A body from the columns id, parameters, timeout_seconds, traceparent.
fn body(row: &PgRow) -> Result<GrantedBody, Failure> {
    let parameters: String = row.try_get(1)?;
    let timeout_seconds: Option<i32> = row.try_get(2)?;
    Ok(GrantedBody {
        id: ExecutionId(row.try_get(0)?),
        parameters: RawValue::from_string(parameters)
            .map_err(|error| unreadable("parameter object", error))?,
        timeout_seconds: timeout_seconds.map(i32::unsigned_abs),
        trace: row
            .try_get::<Option<&str>, _>("traceparent")?
            .and_then(TraceParent::parse),
    })
}

/// Which parts of the statement a batch has.
fn parts(batch: &Batch, run: Run) -> CommitOf {
    let accepts = !batch.inserts.is_empty() || !batch.instant.is_empty();
    let has = |part| match part {
        Part::Accepts => accepts,
        Part::Traced => {
            let mut new = batch.inserts.iter();
            new.any(|new| new.submission.trace.is_some())
        }
        Part::Instant => !batch.instant.is_empty(),
        Part::Meters => !batch.meters.is_empty(),
        Part::Progress => !batch.progress.is_empty(),
        Part::Grants => batch.updates.iter().any(Update::grants),
        Part::Changes => !batch.updates.iter().all(Update::grants),
        Part::Ends => !batch.ends.is_empty(),
        Part::Totals => !batch.totals.is_empty(),
        Part::Again => run == Run::Again,
    };
    CommitOf::parts(Part::ALL.into_iter().filter(|part| has(*part)))
}

/// The parameters of the statement, in its order. Everything that is locked is sorted.
fn parameters(batch: &Batch, of: CommitOf) -> Result<PgArguments, StoreError> {
    let mut binds = Binds::default();
    let fences = fences(batch);
    binds.value(batch.owner.0);
    binds.column(&fences, |(partition, _)| i32::from(partition.0));
    binds.column(&fences, |(_, epoch)| epoch.0);
    if of.has_time() {
        binds.value(text::time(batch.at));
    }
    for part in Part::ALL.into_iter().filter(|part| of.has(*part)) {
        match part {
            Part::Accepts => add_inserts(&mut binds, batch),
            Part::Traced => traceparents(&mut binds, &inserts(batch)),
            Part::Instant => add_instant(&mut binds, batch),
            Part::Meters => add_meters(&mut binds, &batch.meters),
            Part::Progress => operations::add_progress(&mut binds, &batch.progress),
            Part::Grants => add_grants(&mut binds, batch),
            Part::Changes => add_changes(&mut binds, batch),
            Part::Ends => add_ends(&mut binds, batch),
            Part::Totals => add_totals(&mut binds, batch),
            Part::Again => {}
        }
    }
    binds.finish()
}

/// Those of the updates that give a slot, or those that do not.
fn updates(batch: &Batch, are_grants: bool) -> Vec<&Update> {
    let updates = batch.updates.iter();
    let mut updates: Vec<&Update> = updates
        .filter(|update| update.grants() == are_grants)
        .collect();
    updates.sort_unstable_by_key(|update| update.id);
    updates
}

fn add_grants(binds: &mut Binds, batch: &Batch) {
    let grants = updates(batch, true);
    binds.value(MAX_BODIES_BYTES as i64);
    binds.column(&grants, |update| update.id.0);
    binds.column(&grants, |update| update.attempt.0);
    binds.column(&grants, |update| update.grant_no.unwrap_or(NO_NUMBER));
    binds.column(&grants, |update| update.cancel_requested);
    binds.column(&grants, |update| {
        update.worker.map_or(NO_WORKER, |worker| worker.0)
    });
    binds.column(&grants, |update| update.grants_ahead());
}

fn add_changes(binds: &mut Binds, batch: &Batch) {
    let changes = updates(batch, false);
    binds.column(&changes, |update| update.id.0);
    binds.column(&changes, |update| update.attempt.0);
    binds.column(&changes, |update| update.status == Some(Status::Queued));
    binds.column(&changes, |update| update.cancel_requested);
    binds.column(&changes, |update| {
        update.starts().map_or(NO_START, text::time)
    });
}

fn add_ends(binds: &mut Binds, batch: &Batch) {
    let mut ends: Vec<&End> = batch.ends.iter().collect();
    ends.sort_unstable_by_key(|end| end.id);
    let outcomes: Vec<&Outcome> = ends.iter().map(|end| &*end.outcome).collect();
    binds.column(&ends, |end| end.id.0);
    add_outcomes(binds, &outcomes);
    binds.column(&ends, |end| end.began(batch.at).map(text::time));
}

fn add_totals(binds: &mut Binds, batch: &Batch) {
    let mut totals = batch.totals.clone();
    totals.sort_unstable_by_key(|(action, _)| *action);
    binds.column(&totals, |(action, _)| action.0);
    binds.column(&totals, |(_, totals)| counter(totals.enqueued));
    binds.column(&totals, |(_, totals)| counter(totals.completed));
    binds.column(&totals, |(_, totals)| counter(totals.cancelled));
    binds.column(&totals, |(_, totals)| counter(totals.expired));
}

/// Sorted, and each once: `held` compares their number with the number of rows.
fn fences(batch: &Batch) -> Vec<(PartitionId, Epoch)> {
    let mut fences = batch.fences.clone();
    fences.sort_unstable();
    fences.dedup();
    fences
}

fn add_inserts(binds: &mut Binds, batch: &Batch) {
    let inserts = inserts(batch);
    add_new(binds, &inserts);
    binds.column(&inserts, |new| new.status.as_str());
    binds.column(&inserts, |new| new.demand.map(|demand| demand.to_bytes()));
    binds.column(&inserts, |new| new.asker.map(|asker| asker.0));
    binds.column(&inserts, |new| new.cancel_requested);
    binds.column(&inserts, |new| new.worker.map(|worker| worker.0));
}

fn inserts(batch: &Batch) -> Vec<&NewExecution> {
    let mut inserts: Vec<&NewExecution> = batch.inserts.iter().collect();
    inserts.sort_unstable_by_key(|new| new.id);
    inserts
}

fn traceparents(binds: &mut Binds, new: &[&NewExecution]) {
    binds.column(new, |new| {
        new.submission.trace.map(|trace| trace.to_string())
    });
}

fn add_instant(binds: &mut Binds, batch: &Batch) {
    let instant = batch.instant.iter();
    let (instant, outcomes): (Vec<&NewExecution>, Vec<&Outcome>) =
        instant.map(|(new, outcome)| (new, &**outcome)).unzip();
    add_new(binds, &instant);
    traceparents(binds, &instant);
    add_outcomes(binds, &outcomes);
}

fn add_new(binds: &mut Binds, new: &[&NewExecution]) {
    binds.column(new, |new| new.id.0);
    binds.column(new, |new| new.action_id.0);
    binds.column(new, |new| new.request_id.0);
    binds.column(new, |new| new.digest);
    binds.column(new, |new| new.attempt.0);
    binds.column(new, |new| new.grant_no);
    binds.column(new, |new| {
        i16::from(new.submission.priority.unwrap_or_default().rank())
    });
    binds.column(new, |new| text::text(&new.submission.action_ref));
    binds.column(new, |new| text::json(&new.submission.parameters));
    binds.column(new, |new| {
        text::optional(new.submission.enforcement_id.as_ref())
    });
    binds.column(new, |new| {
        text::optional(new.submission.requested_by.as_ref())
    });
    binds.column(new, |new| text::optional(new.submission.group.as_ref()));
    binds.column(new, |new| labels(new));
    binds.column(new, |new| new.submission.not_before.map(text::time));
    binds.column(new, |new| new.submission.timeout_seconds.map(number));
    binds.column(new, |new| new.submission.requeue_of.map(|of| of.0));
}

fn add_meters(binds: &mut Binds, meters: &[Meter]) {
    binds.column(meters, |meter| i32::from(meter.partition.0));
    binds.column(meters, |meter| text::text(&meter.place.limit_id));
    binds.column(meters, |meter| meter.place.key.to_vec());
    binds.column(meters, |meter| meter.state.clone());
    binds.column(meters, |meter| text::time(meter.expires_at));
}

fn add_outcomes(binds: &mut Binds, outcomes: &[&Outcome]) {
    binds.column(outcomes, |outcome| outcome.status.as_str());
    binds.column(outcomes, |outcome| outcome.exit_code);
    binds.column(outcomes, |outcome| outcome.code.map(EndCode::as_str));
    binds.column(outcomes, |outcome| {
        outcome.result.as_deref().map(text::json)
    });
    binds.column(outcomes, |outcome| text::optional(outcome.error.as_ref()));
    binds.column(outcomes, |outcome| text::optional(outcome.stdout.as_ref()));
    binds.column(outcomes, |outcome| text::optional(outcome.stderr.as_ref()));
}

/// The labels as a JSON object, or nothing where there are none.
fn labels(new: &NewExecution) -> Option<String> {
    let labels = &new.submission.labels;
    (!labels.is_empty())
        .then(|| serde_json::to_string(labels).expect("a map of strings is always JSON"))
}

/// A count that fits the column; counts never come near the bound.
pub(crate) fn counter(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// A number of seconds or slots that fits the column; larger ones mean the same.
pub(crate) fn number(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}
