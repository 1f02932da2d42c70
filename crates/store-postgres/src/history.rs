//! Reading executions some days of their history at a time.
//!
//! A statement locks all days that it may read, each with its indexes, and the server has room for a
//! few thousand locks in all: without room left, commits fail. So nothing here reads all days in one
//! statement. The days are walked from today backwards, which is where nearly everything that is
//! asked for is found.

use attune_core::{ExecutionId, Status};
use attune_store::{Cursor, ExecutionFilter, ExecutionPage, ExecutionRecord, Standing};
use chrono::{DateTime, Duration, Utc};
use sqlx::Row as _;
use sqlx::postgres::{PgArguments, PgPool, PgRow};

use crate::bind::Binds;
use crate::executions::{record, standing};
use crate::failure::Failure;
use crate::time::{Place, Time};
use crate::{sql, text};

/// How many days one statement reads; the first also reads those to come, which are empty.
const DAYS_AT_ONCE: usize = 8;

/// How far a clock may have been set back, so that an execution ended before it was accepted.
const CLOCK_SET_BACK: Duration = Duration::days(1);

/// Days of the history that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Days {
    since: Option<DateTime<Utc>>,
    before: Option<DateTime<Utc>>,
}

/// All time, from the newest to the oldest, so that each part has few of `days`.
fn parts(days: &[DateTime<Utc>]) -> Vec<Days> {
    let starts = days.chunks(DAYS_AT_ONCE).filter_map(<[_]>::last).copied();
    let mut parts = Vec::new();
    let mut before = None;
    for since in starts {
        parts.push(Days {
            since: Some(since),
            before,
        });
        before = Some(since);
    }
    match parts.last_mut() {
        Some(oldest) => oldest.since = None,
        None => parts.push(Days {
            since: None,
            before: None,
        }),
    }
    parts
}

async fn walk(pool: &PgPool) -> Result<Vec<Days>, Failure> {
    let days = sqlx::query_scalar(sql::HISTORY_DAYS)
        .fetch_all(pool)
        .await?;
    let days: Vec<_> = days.into_iter().map(|Time(day)| day).collect();
    Ok(parts(&days))
}

/// The execution with this id.
pub(crate) async fn find(
    pool: &PgPool,
    id: ExecutionId,
) -> Result<Option<ExecutionRecord>, Failure> {
    let row = row_of(pool, id, sql::FIND_ACTIVE, sql::FIND_ENDED).await?;
    row.as_ref().map(record).transpose()
}

/// Where it stands, of columns that are never stored elsewhere than in its row.
pub(crate) async fn find_standing(
    pool: &PgPool,
    id: ExecutionId,
) -> Result<Option<Standing>, Failure> {
    let (active, ended) = (sql::FIND_STANDING_ACTIVE, sql::FIND_STANDING_ENDED);
    let row = row_of(pool, id, active, ended).await?;
    row.as_ref().map(standing).transpose()
}

/// What it was given, as it was written.
pub(crate) async fn find_parameters(
    pool: &PgPool,
    id: ExecutionId,
) -> Result<Option<String>, Failure> {
    let (active, ended) = (sql::FIND_PARAMETERS_ACTIVE, sql::FIND_PARAMETERS_ENDED);
    let row = row_of(pool, id, active, ended).await?;
    Ok(row.map(|row| row.try_get("parameters")).transpose()?)
}

/// What two statements find of an execution. What leaves the active ones while it is looked for is in
/// the newest day, which is read after them.
async fn row_of(
    pool: &PgPool,
    id: ExecutionId,
    active: &'static str,
    ended: &'static str,
) -> Result<Option<PgRow>, Failure> {
    let row = sqlx::query(active).bind(id.0).fetch_optional(pool).await?;
    if row.is_some() {
        return Ok(row);
    }
    for days in walk(pool).await? {
        let ended = sqlx::query(ended)
            .bind(id.0)
            .bind(days.since)
            .bind(days.before);
        let row = ended.fetch_optional(pool).await?;
        if row.is_some() {
            return Ok(row);
        }
    }
    Ok(None)
}

/// A page of the list. What ends while it is read may be met twice and counts once, as it was met
/// first.
pub(crate) async fn list(
    pool: &PgPool,
    filter: &ExecutionFilter,
    after: Option<Cursor>,
    limit: u32,
) -> Result<ExecutionPage, Failure> {
    // One more than asked tells whether another page follows.
    let mut page = Page {
        rows: Vec::new(),
        wanted: limit as usize + 1,
    };
    let asks = |ended: bool| {
        let mut statuses = filter.statuses.iter().copied();
        filter.statuses.is_empty() || statuses.any(|status| status.is_terminal() == ended)
    };
    if asks(false) {
        let binds = binds(filter, after, page.wanted).finish()?;
        page.add(pool, sql::LIST_ACTIVE, binds).await?;
    }
    if asks(true) {
        for days in walk(pool).await? {
            let last = page.last();
            let mut binds = binds(filter, after, page.wanted);
            binds.value(last.map(|last| last.created));
            binds.value(last.map(|last| last.id.0));
            binds.value(days.since);
            binds.value(days.before);
            page.add(pool, sql::LIST_ENDED, binds.finish()?).await?;
            if page.complete(days) {
                break;
            }
        }
    }
    let more = page.rows.len() > limit as usize;
    page.rows.truncate(limit as usize);
    let next = page.rows.last().filter(|_| more).map(cursor);
    Ok(ExecutionPage {
        executions: page.rows,
        next,
    })
}

/// The first rows of the list, as far as it was read.
struct Page {
    rows: Vec<ExecutionRecord>,
    wanted: usize,
}

impl Page {
    /// Adds what a statement finds, and leaves out what is too much.
    async fn add(
        &mut self,
        pool: &PgPool,
        statement: &'static str,
        binds: PgArguments,
    ) -> Result<(), Failure> {
        let rows = sqlx::query_with(statement, binds).fetch_all(pool).await?;
        for row in &rows {
            self.rows.push(record(row)?);
        }
        // Stable: of two with the same place the one that was met first stays.
        self.rows
            .sort_by_key(|row| std::cmp::Reverse((row.created, row.id)));
        self.rows.dedup_by_key(|row| row.id);
        self.rows.truncate(self.wanted);
        Ok(())
    }

    /// The place of its last row, if there is no room for more.
    fn last(&self) -> Option<Cursor> {
        let full = self.rows.len() >= self.wanted;
        self.rows.last().filter(|_| full).map(cursor)
    }

    /// Whether nothing that ended before `read` can come before its last row.
    fn complete(&self, read: Days) -> bool {
        match (self.last(), read.since) {
            (Some(last), Some(since)) => last.created >= since + CLOCK_SET_BACK,
            _ => false,
        }
    }
}

fn cursor(row: &ExecutionRecord) -> Cursor {
    Cursor {
        created: row.created,
        id: row.id,
    }
}

/// The parameters that both statements of a list begin with.
fn binds(filter: &ExecutionFilter, after: Option<Cursor>, wanted: usize) -> Binds {
    let clean = |value: &Option<String>| text::optional(value.as_ref()).map(String::from);
    let statuses: Vec<&str> = filter
        .statuses
        .iter()
        .copied()
        .map(Status::as_str)
        .collect();
    let mut binds = Binds::default();
    binds.value(clean(&filter.action_ref));
    binds.value((!statuses.is_empty()).then_some(statuses));
    binds.value(clean(&filter.requested_by));
    binds.value(clean(&filter.group));
    binds.value(after.map(|after| Place::falling(after.created)));
    binds.value(after.map(|after| after.id.0));
    binds.value(i64::try_from(wanted).unwrap_or(i64::MAX));
    binds.value(filter.bodies.parameters);
    binds.value(filter.bodies.result);
    binds.value(filter.bodies.stdout);
    binds.value(filter.bodies.stderr);
    let ranks = filter.priorities.iter().map(|it| i16::from(it.rank()));
    let ranks: Vec<i16> = ranks.collect();
    binds.value((!ranks.is_empty()).then_some(ranks));
    binds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_history_join_without_a_gap_and_are_small() {
        for count in [0, 1, 7, 8, 9, 16, 400] {
            let today = DateTime::<Utc>::UNIX_EPOCH + Duration::days(1_000);
            let days: Vec<_> = (0..count).map(|n| today - Duration::days(n)).collect();
            let parts = parts(&days);
            assert_eq!(parts.first().map(|part| part.before), Some(None));
            assert_eq!(parts.last().map(|part| part.since), Some(None));
            for pair in parts.windows(2) {
                assert_eq!(pair[0].since, pair[1].before);
                assert!(pair[0].since.is_some());
            }
            for part in &parts {
                let inside = |day: &&DateTime<Utc>| {
                    part.since.is_none_or(|since| **day >= since)
                        && part.before.is_none_or(|before| **day < before)
                };
                assert!(days.iter().filter(inside).count() <= DAYS_AT_ONCE);
            }
        }
    }
}
