//! `/api/v1/cluster` and `/api/v1/audit-log`: who is there, and what was done by hand.

use std::collections::BTreeMap;

use attune_core::OwnerId;
use attune_store::{Lease, WorkerRow};
use axum::Json;
use axum::extract::State;
use axum::http::Uri;

use super::App;
use crate::error::ApiError;
use crate::query::Params;
use crate::wire::{AuditList, Cluster, ExecutorView, PartitionView, WorkerView, millis};

/// Executors, partitions and workers as their leases show them.
pub(crate) async fn show(State(app): State<App>) -> Result<Json<Cluster>, ApiError> {
    let leases = app.ports.partitions.leases().await?;
    let workers = app.ports.workers.workers().await?;
    Ok(Json(Cluster {
        executors: executors(&leases),
        partitions: leases.into_iter().map(partition).collect(),
        workers: workers.into_iter().map(worker).collect(),
    }))
}

/// The executors that own partitions, by name.
fn executors(leases: &[Lease]) -> Vec<ExecutorView> {
    let mut found: BTreeMap<(String, OwnerId), ExecutorView> = BTreeMap::new();
    for lease in leases {
        let Some(owner) = lease.owner else { continue };
        let name = lease.owner_name.clone().unwrap_or_default();
        let view = found
            .entry((name.clone(), owner))
            .or_insert_with(|| ExecutorView {
                id: owner,
                name,
                partitions: 0,
                lease_remaining_ms: 0,
            });
        view.partitions += 1;
        view.lease_remaining_ms = view.lease_remaining_ms.max(millis(lease.remaining));
    }
    found.into_values().collect()
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
