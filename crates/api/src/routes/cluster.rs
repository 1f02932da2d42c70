//! `/api/v1/cluster` and `/api/v1/audit-log`: who is there, and what was done by hand.

use attune_core::millis;
use attune_store::{ExecutorRow, Lease, WorkerRow};
use axum::Json;
use axum::extract::State;
use axum::http::Uri;

use super::App;
use crate::error::ApiError;
use crate::query::Params;
use crate::wire::{AuditList, Cluster, ExecutorView, PartitionView, WorkerView};

/// Executors, partitions and workers as their leases show them.
pub(crate) async fn show(State(app): State<App>) -> Result<Json<Cluster>, ApiError> {
    let rows = app.ports.partitions.executors().await?;
    let leases = app.ports.partitions.leases().await?;
    let workers = app.ports.workers.workers().await?;
    Ok(Json(Cluster {
        executors: executors(rows, &leases),
        partitions: leases.into_iter().map(partition).collect(),
        workers: workers.into_iter().map(worker).collect(),
    }))
}

/// The executors that are alive or still own partitions, by name.
fn executors(rows: Vec<ExecutorRow>, leases: &[Lease]) -> Vec<ExecutorView> {
    let owned = |id| {
        leases
            .iter()
            .filter(|it| it.owner == Some(id))
            .map(|_| 1)
            .sum()
    };
    rows.into_iter()
        .map(|row| ExecutorView {
            partitions: owned(row.executor),
            id: row.executor,
            name: row.name,
            lease_remaining_ms: millis(row.remaining),
        })
        .filter(|view| view.partitions > 0 || view.lease_remaining_ms > 0)
        .collect()
}

fn partition(lease: Lease) -> PartitionView {
    PartitionView {
        partition: lease.partition,
        owner: lease.owner,
        owner_name: lease.owner_name,
        epoch: lease.epoch,
        lease_remaining_ms: millis(lease.remaining),
    }
}

fn worker(row: WorkerRow) -> WorkerView {
    WorkerView {
        id: row.worker,
        name: row.name,
        pool: row.pool,
        slots: row.slots,
        alive: !row.remaining.is_zero(),
        lease_remaining_ms: millis(row.remaining),
        seen_ago_ms: row.seen_ago.map(millis),
    }
}

/// What was done by hand and what was found wrong, the newest first, in pages.
pub(crate) async fn audit_log(
    State(app): State<App>,
    uri: Uri,
) -> Result<Json<AuditList>, ApiError> {
    let mut params = Params::of(&uri)?;
    let before: Option<i64> = params.parse("before")?;
    let limit = params.limit(app.options.max_page_size)?;
    params.end("before, limit")?;
    let mut entries = app.ports.audit.audit_log(before, limit + 1).await?;
    let more = entries.len() > limit as usize;
    entries.truncate(limit as usize);
    let next = entries.last().filter(|_| more).map(|entry| entry.id);
    Ok(Json(AuditList { entries, next }))
}
