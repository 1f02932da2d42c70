//! The commit: a batch as the parameters of `sql/commit.sql`.

use attune_core::{PartitionId, Status};
use attune_store::{
    Batch, CommitError, Committed, End, GrantedBody, NewExecution, Outcome, StoreError, Update,
};
use serde_json::value::RawValue;
use sqlx::Row as _;
use sqlx::postgres::{PgArguments, PgPool, PgRow};

use crate::bind::Binds;
use crate::db::Db;
use crate::failure::{Failure, unreadable};
use crate::{sql, text};

/// How a commit went, before the fences are compared.
#[derive(Default)]
struct Answer {
    held: Vec<i32>,
    committed: Committed,
}

impl Db {
    /// Writes a batch if every fence holds.
    pub(crate) async fn commit_batch(&self, batch: &Batch) -> Result<Committed, CommitError> {
        let parameters = parameters(batch)?;
        let pool = self.commit.clone();
        let answer = self
            .run(async move { execute(&pool, parameters).await })
            .await?;
        let missing: Vec<PartitionId> = batch
            .fences
            .iter()
            .map(|(partition, _)| *partition)
            .filter(|partition| !answer.held.contains(&i32::from(partition.0)))
            .collect();
        if missing.is_empty() {
            Ok(answer.committed)
        } else {
            Err(CommitError::Fenced(missing))
        }
    }
}

async fn execute(pool: &PgPool, parameters: PgArguments) -> Result<Answer, Failure> {
    let rows = sqlx::query_with(sql::COMMIT, parameters)
        .fetch_all(pool)
        .await?;
    let mut answer = Answer::default();
    for row in rows {
        match row.try_get::<Option<i64>, _>(0)? {
            Some(_) => answer.committed.granted.push(body(&row)?),
            None => {
                answer.held = row.try_get(3)?;
                let ended: i64 = row.try_get(4)?;
                answer.committed.ended = ended.unsigned_abs();
            }
        }
    }
    Ok(answer)
}

/// A body from the columns id, parameters, timeout_seconds.
pub(crate) fn body(row: &PgRow) -> Result<GrantedBody, Failure> {
    let parameters: String = row.try_get(1)?;
    let timeout_seconds: Option<i32> = row.try_get(2)?;
    Ok(GrantedBody {
        id: attune_core::ExecutionId(row.try_get(0)?),
        parameters: RawValue::from_string(parameters)
            .map_err(|error| unreadable("parameter object", error))?,
        timeout_seconds: timeout_seconds.map(i32::unsigned_abs),
    })
}

/// The parameters of the statement, in its order. Everything that is locked is sorted.
fn parameters(batch: &Batch) -> Result<PgArguments, StoreError> {
    let mut binds = Binds::default();
    let mut fences = batch.fences.clone();
    fences.sort_unstable();
    // `held` compares the number of fences with the number of rows.
    fences.dedup();
    binds.value(batch.owner.0);
    binds.column(&fences, |(partition, _)| i32::from(partition.0));
    binds.column(&fences, |(_, epoch)| epoch.0);

    let mut inserts: Vec<&NewExecution> = batch.inserts.iter().collect();
    inserts.sort_unstable_by_key(|new| new.id);
    add_new(&mut binds, &inserts);

    let (instant, outcomes): (Vec<&NewExecution>, Vec<&Outcome>) =
        batch.instant.iter().map(|(new, end)| (new, end)).unzip();
    add_new(&mut binds, &instant);
    add_outcomes(&mut binds, &outcomes);

    let mut updates: Vec<&Update> = batch.updates.iter().collect();
    updates.sort_unstable_by_key(|update| update.id);
    binds.column(&updates, |update| update.id.0);
    binds.column(&updates, |update| update.status.map(Status::as_str));
    binds.column(&updates, |update| update.attempt.0);
    binds.column(&updates, |update| update.grant_no);
    binds.column(&updates, |update| update.cancel_requested);

    let mut ends: Vec<&End> = batch.ends.iter().collect();
    ends.sort_unstable_by_key(|end| end.id);
    let outcomes: Vec<&Outcome> = ends.iter().map(|end| &end.outcome).collect();
    binds.column(&ends, |end| end.id.0);
    add_outcomes(&mut binds, &outcomes);

    let mut totals = batch.totals.clone();
    totals.sort_unstable_by_key(|(action, _)| *action);
    binds.column(&totals, |(action, _)| action.0);
    binds.column(&totals, |(_, totals)| counter(totals.enqueued));
    binds.column(&totals, |(_, totals)| counter(totals.completed));
    binds.column(&totals, |(_, totals)| counter(totals.cancelled));
    binds.column(&totals, |(_, totals)| counter(totals.expired));
    binds.finish()
}

fn add_new(binds: &mut Binds, new: &[&NewExecution]) {
    binds.column(new, |new| new.id.0);
    binds.column(new, |new| new.action_id.0);
    binds.column(new, |new| new.request_id.0);
    binds.column(new, |new| new.digest);
    binds.column(new, |new| new.status.as_str());
    binds.column(new, |new| new.attempt.0);
    binds.column(new, |new| new.grant_no);
    binds.column(new, |new| i16::from(new.submission.priority.rank()));
    binds.column(new, |new| text::text(&new.submission.action_ref));
    binds.column(new, |new| {
        text::optional(new.submission.enforcement_id.as_ref())
    });
    binds.column(new, |new| {
        text::optional(new.submission.requested_by.as_ref())
    });
    binds.column(new, |new| text::optional(new.submission.group.as_ref()));
    binds.column(new, |new| labels(new));
    binds.column(new, |new| text::json(&new.submission.parameters));
    binds.column(new, |new| new.submission.not_before.map(text::time));
    binds.column(new, |new| new.submission.timeout_seconds.map(number));
}

fn add_outcomes(binds: &mut Binds, outcomes: &[&Outcome]) {
    binds.column(outcomes, |outcome| outcome.status.as_str());
    binds.column(outcomes, |outcome| {
        outcome.result.as_deref().map(text::json)
    });
    binds.column(outcomes, |outcome| text::optional(outcome.error.as_ref()));
    binds.column(outcomes, |outcome| outcome.exit_code);
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
