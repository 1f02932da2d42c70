//! What the owner's port reads, out of rows.

use attune_core::{
    ActionId, Asker, Attempt, Epoch, ExecutionId, OwnerId, QueueTotals, RawValue, RequestGap,
    RequestId, WorkerId,
};
use attune_store::{
    ActivePlace, ActiveRow, ExecutionWords, ExecutorRow, KnownRequest, Lease, LeaseTrouble,
    MeterPlace, MeterRow, SlotRow, WorkerEnd,
};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::error::unreadable;
use crate::rows::{
    bytes, demand, duration, optional_time, partition, priority, status, time, unsigned, uuid,
};

pub(crate) fn lease(row: &SqliteRow) -> Result<Lease, sqlx::Error> {
    let owner: Option<&str> = row.try_get("owner")?;
    let wanted: Option<&str> = row.try_get("wanted_owner")?;
    let holder: Option<&str> = row.try_get("holder")?;
    let remaining: f64 = row.try_get("remaining")?;
    let trouble: Option<String> = row.try_get("trouble")?;
    let trouble = trouble.filter(|_| owner.is_some());
    let trouble = trouble.zip(optional_time(row, "trouble_since")?);
    Ok(Lease {
        partition: partition(row.try_get("partition")?)?,
        owner: owner.map(uuid).transpose()?.map(OwnerId),
        owner_name: row.try_get("owner_name")?,
        epoch: Epoch(row.try_get("epoch")?),
        remaining: duration(remaining),
        free_for: duration(-remaining),
        wanted_owner: wanted.map(uuid).transpose()?.map(OwnerId),
        holder: holder.map(uuid).transpose()?.map(OwnerId),
        renewals: row.try_get("renewals")?,
        ttl: duration(row.try_get("ttl")?),
        trouble: trouble.map(|(words, since)| LeaseTrouble { since, words }),
    })
}

/// What was counted; whether the state can be read is for its owner to see.
pub(crate) fn meter(row: &SqliteRow) -> Result<MeterRow, sqlx::Error> {
    let (key, state): (&str, &str) = (row.try_get("key")?, row.try_get("state")?);
    let named = || unreadable(format_args!("the key `{key}` of a meter"));
    Ok(MeterRow {
        place: MeterPlace {
            limit_id: row.try_get("limit_id")?,
            key: bytes(key)
                .and_then(|key| key.try_into().ok())
                .ok_or_else(named)?,
        },
        state: bytes(state).unwrap_or_default(),
        written_at: time(row.try_get("written_at")?)?,
    })
}

pub(crate) fn executor_row(row: &SqliteRow) -> Result<ExecutorRow, sqlx::Error> {
    Ok(ExecutorRow {
        executor: OwnerId(uuid(row.try_get("executor")?)?),
        name: row.try_get("name")?,
        remaining: duration(row.try_get("remaining")?),
        renewals: row.try_get("renewals")?,
        cut_off: row.try_get("cut_off")?,
    })
}

pub(crate) fn active_place(row: &SqliteRow) -> Result<ActivePlace, sqlx::Error> {
    Ok(ActivePlace {
        action_id: ActionId(row.try_get("action")?),
        created: time(row.try_get("created")?)?,
        id: ExecutionId(row.try_get("id")?),
    })
}

/// By number, because a takeover may load a million of them.
pub(crate) fn active_row(row: &SqliteRow) -> Result<ActiveRow, sqlx::Error> {
    let worker: Option<&str> = row.try_get(13)?;
    Ok(ActiveRow {
        id: ExecutionId(row.try_get(0)?),
        action_id: ActionId(row.try_get(1)?),
        priority: priority(row.try_get(2)?)?,
        status: status(row.try_get(3)?)?,
        attempt: Attempt(row.try_get(4)?),
        grant_no: row.try_get(14)?,
        worker: worker.map(uuid).transpose()?.map(WorkerId),
        unbegun: row.try_get(8)?,
        retried: row.try_get(9)?,
        created: time(row.try_get(5)?)?,
        not_before: optional_time(row, "not_before")?,
        cancel_requested: row.try_get(7)?,
        demand: row.try_get::<Option<&str>, _>(10)?.and_then(demand),
        asker: row.try_get::<Option<i64>, _>(15)?.map(Asker),
        front: row.try_get(11)?,
        kept_until: optional_time(row, "kept_until")?,
    })
}

pub(crate) fn slot_row(row: &SqliteRow) -> Result<SlotRow, sqlx::Error> {
    let worker: Option<&str> = row.try_get("worker")?;
    Ok(SlotRow {
        id: ExecutionId(row.try_get("id")?),
        action_id: ActionId(row.try_get("action")?),
        priority: priority(row.try_get("priority")?)?,
        attempt: Attempt(row.try_get("attempt")?),
        grant_no: row.try_get("grant_no")?,
        unbegun: row.try_get("unbegun")?,
        status: status(row.try_get("status")?)?,
        worker: worker.map(uuid).transpose()?.map(WorkerId),
        worker_over: row.try_get("worker_over")?,
        created: time(row.try_get("created")?)?,
        requested_at: optional_time(row, "requested_at")?,
        running_for: row.try_get::<Option<f64>, _>("running_for")?.map(duration),
        cancel_requested: row.try_get("cancel_requested")?,
        demand: row.try_get::<Option<&str>, _>("demand")?.and_then(demand),
        asker: row.try_get::<Option<i64>, _>("asker")?.map(Asker),
        front: row.try_get("front")?,
        kept_until: optional_time(row, "kept_until")?,
    })
}

/// What an execution says. What cannot be read counts as not said: its queue stands still until it is
/// known of all by what they are grouped.
pub(crate) fn words(row: &SqliteRow) -> Result<ExecutionWords, sqlx::Error> {
    let labels: &str = row.try_get("labels")?;
    let parameters: String = row.try_get("parameters")?;
    Ok(ExecutionWords {
        id: ExecutionId(row.try_get("id")?),
        requested_by: row.try_get("requested_by")?,
        group: row.try_get("group_key")?,
        labels: serde_json::from_str(labels).unwrap_or_default(),
        parameters: RawValue::from_string(parameters).unwrap_or_default(),
    })
}

pub(crate) fn worker_end(row: &SqliteRow) -> Result<WorkerEnd, sqlx::Error> {
    let begun: Option<&str> = row.try_get("begun")?;
    Ok(WorkerEnd {
        worker: WorkerId(uuid(row.try_get("worker")?)?),
        pool: row.try_get("pool")?,
        broker_user: row.try_get("broker_user")?,
        slots: row.try_get("slots")?,
        draining: row.try_get("draining")?,
        renewals: row.try_get("renewals")?,
        ttl: duration(row.try_get("ttl")?),
        ended: row.try_get("ended")?,
        gone: row.try_get("gone")?,
        begun: WorkerEnd::begun_from(begun),
    })
}

pub(crate) fn totals(row: &SqliteRow) -> Result<(ActionId, QueueTotals), sqlx::Error> {
    let totals = QueueTotals {
        enqueued: unsigned(row.try_get("enqueued")?)?,
        completed: unsigned(row.try_get("completed")?)?,
        cancelled: unsigned(row.try_get("cancelled")?)?,
        expired: unsigned(row.try_get("expired")?)?,
    };
    Ok((ActionId(row.try_get("action")?), totals))
}

pub(crate) fn request_gap(row: &SqliteRow) -> Result<RequestGap, sqlx::Error> {
    let next = |column| -> Result<Option<RequestId>, sqlx::Error> {
        let text: Option<&str> = row.try_get(column)?;
        text.map(|text| Ok(RequestId(uuid(text)?))).transpose()
    };
    Ok(RequestGap {
        above: next("above")?,
        below: next("below")?,
    })
}

pub(crate) fn known_request(row: &SqliteRow) -> Result<KnownRequest, sqlx::Error> {
    Ok(KnownRequest {
        request_id: RequestId(uuid(row.try_get("request_id")?)?),
        execution_id: ExecutionId(row.try_get("execution_id")?),
        digest: row.try_get("digest")?,
        status: status(row.try_get("status")?)?,
    })
}
