//! What the owner's port reads, out of rows.

use std::time::Duration;

use attune_core::{
    ActionId, Asker, Attempt, Demand, Epoch, ExecutionId, OwnerId, Priority, RawValue, WorkerId,
};
use attune_store::{
    ActivePlace, ActiveRow, ExecutionWords, ExecutorRow, Lease, LeaseTrouble, MeterPlace, MeterRow,
    SlotRow, WorkerEnd,
};
use sqlx::postgres::PgRow;
use sqlx::{FromRow as _, Row as _};
use uuid::Uuid;

use crate::failure::{Failure, unreadable};
use crate::partitions::{between, place, priority, status};
use crate::time::{self, Time};

/// Reads a row of executions, and names it where that fails.
pub(crate) fn named<T>(
    row: &PgRow,
    read: impl FnOnce(&PgRow) -> Result<T, Failure>,
) -> Result<T, Failure> {
    read(row).map_err(|failure| match row.try_get("id") {
        Ok(id) => failure.of_execution(id),
        Err(_) => failure,
    })
}

pub(crate) fn lease(row: &PgRow) -> Result<Lease, Failure> {
    let now = time::time(row, "now")?;
    let expires_at = time::time(row, "expires_at")?;
    let holder: Option<Uuid> = row.try_get("owner")?;
    let name: Option<String> = row.try_get("owner_name")?;
    let remaining = between(now, expires_at);
    let held = holder.is_some() && !remaining.is_zero();
    let trouble: Option<String> = row.try_get("trouble")?;
    let since = time::optional(row, "trouble_since")?;
    let trouble = trouble.filter(|_| held).zip(since);
    Ok(Lease {
        partition: place(row.try_get("partition")?),
        owner: holder.filter(|_| held).map(OwnerId),
        owner_name: name.filter(|_| held),
        epoch: Epoch(row.try_get("epoch")?),
        remaining: if held { remaining } else { Duration::ZERO },
        free_for: between(expires_at, now),
        wanted_owner: row.try_get::<Option<Uuid>, _>("wanted_owner")?.map(OwnerId),
        holder: holder.map(OwnerId),
        renewals: row.try_get("renewals")?,
        ttl: between(time::time(row, "updated_at")?, expires_at),
        trouble: trouble.map(|(words, since)| LeaseTrouble { since, words }),
    })
}

pub(crate) fn executor_row(
    (executor, name, Time(expires_at), Time(now), renewals, cut_off): (
        Uuid,
        String,
        Time,
        Time,
        i64,
        bool,
    ),
) -> ExecutorRow {
    ExecutorRow {
        executor: OwnerId(executor),
        name,
        remaining: between(now, expires_at),
        renewals,
        cut_off,
    }
}

pub(crate) fn worker_end(row: &PgRow) -> Result<WorkerEnd, Failure> {
    let renewed_at = time::time(row, "renewed_at")?;
    let begun: Option<String> = row.try_get("begun")?;
    Ok(WorkerEnd {
        worker: WorkerId(row.try_get("worker")?),
        pool: row.try_get("pool")?,
        broker_user: row.try_get("broker_user")?,
        slots: row.try_get::<i32, _>("slots")?.unsigned_abs(),
        draining: row.try_get("draining")?,
        renewals: row.try_get("renewals")?,
        ttl: between(renewed_at, time::time(row, "expires_at")?),
        ended: row.try_get("ended")?,
        gone: row.try_get("gone")?,
        begun: WorkerEnd::begun_from(begun.as_deref()),
    })
}

pub(crate) fn execution_id(row: &PgRow) -> Result<ExecutionId, Failure> {
    Ok(ExecutionId(row.try_get("id")?))
}

pub(crate) fn active_place(row: &PgRow) -> Result<ActivePlace, Failure> {
    Ok(ActivePlace {
        action_id: ActionId(row.try_get("action")?),
        created: time::time(row, "created")?,
        id: execution_id(row)?,
    })
}

/// A row that its new owner goes by, so all of it must be right.
pub(crate) fn active_row(row: &PgRow) -> Result<ActiveRow, Failure> {
    named(row, |row| read_active(row, priority))
}

fn read_active(
    row: &PgRow,
    priority: impl FnOnce(i16) -> Result<Priority, Failure>,
) -> Result<ActiveRow, Failure> {
    type Columns<'r> = (
        i64,
        i64,
        i16,
        &'r str,
        i32,
        Time,
        Option<Time>,
        bool,
        i32,
        bool,
        Option<&'r [u8]>,
        bool,
        Option<Time>,
        Option<Uuid>,
        Option<i64>,
        Option<i64>,
    );
    let columns = Columns::from_row(row)?;
    let (id, action, rank, text, attempt, created, not_before, cancel_requested, ..) = columns;
    let (.., unbegun, retried, demand, front, kept_until, worker, grant_no, asker) = columns;
    Ok(ActiveRow {
        id: ExecutionId(id),
        action_id: ActionId(action),
        priority: priority(rank)?,
        status: status(text)?,
        attempt: Attempt(attempt),
        grant_no,
        worker: worker.map(WorkerId),
        unbegun: grants(unbegun),
        retried,
        created: created.0,
        not_before: not_before.map(|Time(at)| at),
        cancel_requested,
        demand: demand.and_then(Demand::from_bytes),
        asker: asker.map(Asker),
        front,
        kept_until: kept_until.map(|Time(at)| at),
    })
}

/// A number of grants; more than are ever counted mean the same.
fn grants(count: i32) -> u16 {
    u16::try_from(count.max(0)).unwrap_or(u16::MAX)
}

/// What was counted; whether the state can be read is for its owner to see.
pub(crate) fn meter(row: &PgRow) -> Result<MeterRow, Failure> {
    let key: &[u8] = row.try_get("key")?;
    Ok(MeterRow {
        place: MeterPlace {
            limit_id: row.try_get("limit_id")?,
            key: key
                .try_into()
                .map_err(|_| unreadable("key of a meter", key.len()))?,
        },
        state: row.try_get("state")?,
        written_at: time::time(row, "written_at")?,
    })
}

/// The rows of a slice that lie in the partitions with these low bytes, to be compared with what
/// their owner has in memory.
///
/// One row that cannot be read must not keep all others from being compared. It is shown all the
/// same, or its owner would give up what it has in memory: with the last priority where its own is
/// none, which passes nobody, and counts only where the owner did not know the row. What has a status
/// that is none neither waits nor holds a slot, as for `load_slots.sql`.
pub(crate) fn compared_rows(rows: &[PgRow], mine: &[i64]) -> Result<Vec<ActiveRow>, Failure> {
    let mut doubts = Doubts::default();
    let mut compared = Vec::new();
    for row in rows {
        let id = execution_id(row)?;
        if !mine.contains(&i64::from(id.partition().0)) {
            continue;
        }
        let read = read_active(row, |rank| Ok(doubts.priority(id, rank)));
        match read {
            Ok(row) => compared.push(row),
            Err(failure @ Failure::Store(_)) => doubts.note(id, failure),
            Err(failure) => return Err(failure.of_execution(id.0)),
        }
    }
    Ok(compared)
}

/// The holders of slots, likewise.
pub(crate) fn slot_rows(rows: &[PgRow]) -> Result<Vec<SlotRow>, Failure> {
    let mut doubts = Doubts::default();
    let rows = rows.iter();
    rows.map(|row| named(row, |row| slot_row(row, &mut doubts)))
        .collect()
}

fn slot_row(row: &PgRow, doubts: &mut Doubts) -> Result<SlotRow, Failure> {
    let id = execution_id(row)?;
    let now = time::time(row, "now")?;
    let started_at = time::measured(row, "started_at")?;
    let worker: Option<Uuid> = row.try_get("worker")?;
    Ok(SlotRow {
        id,
        action_id: ActionId(row.try_get("action")?),
        priority: doubts.priority(id, row.try_get("priority")?),
        attempt: Attempt(row.try_get("attempt")?),
        grant_no: row.try_get("grant_no")?,
        unbegun: grants(row.try_get("unbegun")?),
        status: status(row.try_get("status")?)?,
        worker: worker.map(WorkerId),
        created: time::time(row, "created")?,
        worker_over: row.try_get("worker_over")?,
        // Without it the slot is as old as the execution, and dispatched again if nobody starts it.
        requested_at: time::measured(row, "requested_at")?,
        running_for: started_at.map(|since| between(since, now)),
        cancel_requested: row.try_get("cancel_requested")?,
        demand: row
            .try_get::<Option<&[u8]>, _>("demand")?
            .and_then(Demand::from_bytes),
        asker: row.try_get::<Option<i64>, _>("asker")?.map(Asker),
        front: row.try_get("front")?,
        kept_until: time::optional(row, "kept_until")?,
    })
}

/// What an execution says. What cannot be read counts as not said: its queue stands still until it is
/// known of all by what they are grouped.
pub(crate) fn words(row: &PgRow) -> Result<ExecutionWords, Failure> {
    let labels: Option<&str> = row.try_get("labels")?;
    let labels = labels.and_then(|labels| serde_json::from_str(labels).ok());
    let parameters: String = row.try_get("parameters")?;
    Ok(ExecutionWords {
        id: execution_id(row)?,
        requested_by: row.try_get("requested_by")?,
        group: row.try_get("group_key")?,
        labels: labels.unwrap_or_default(),
        parameters: RawValue::from_string(parameters).unwrap_or_default(),
    })
}

/// What could not be read of rows that are compared; told once for all of them.
#[derive(Default)]
struct Doubts {
    first: Option<Failure>,
    rows: u64,
}

impl Doubts {
    fn priority(&mut self, id: ExecutionId, rank: i16) -> Priority {
        priority(rank).unwrap_or_else(|failure| {
            self.note(id, failure);
            Priority::Background
        })
    }

    fn note(&mut self, id: ExecutionId, failure: Failure) {
        self.rows += 1;
        if self.first.is_none() {
            self.first = Some(failure.of_execution(id.0));
        }
    }
}

impl Drop for Doubts {
    fn drop(&mut self) {
        if let Some(Failure::Store(error)) = &self.first {
            tracing::warn!(%error, rows = self.rows, "compared without what cannot be read");
        }
    }
}
