//! `/api/v1/cluster`: who is there.

use attune_core::millis;
use attune_store::{ExecutorRow, Lease, WorkerRow};
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;

use super::App;
use crate::error::ApiError;
use crate::query::Params;
use attune_api_types::{Cluster, ExecutorView, PartitionView, WorkerView};

/// How many workers are shown at once.
const MAX_WORKERS: usize = 1_000;
/// What showing them, and reading those that are not shown, may need, in bytes.
const CLUSTER_BYTES: usize = 4 << 20;

/// Executors, partitions and workers as their leases show them.
#[utoipa::path(
    get, path = "/cluster", tag = "operations", operation_id = "show_cluster",
    responses((status = 200, description = "Who is there.", body = Cluster))
)]
pub(crate) async fn show(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    Params::of(&uri)?.end("nothing")?;
    let memory = app.memory.reserve(CLUSTER_BYTES).await?;
    let rows = app.ports.partitions.executors().await?;
    let leases = app.ports.partitions.leases().await?;
    let (workers, left_out) = shown(app.ports.workers.workers().await?);
    Ok(memory.json(&Cluster {
        executors: executors(rows, &leases),
        partitions: leases.into_iter().map(partition).collect(),
        workers,
        workers_left_out: left_out,
    }))
}

/// As many workers as fit, by name, and how many are left out: of those that are gone first, for
/// anybody who registers under a new id each time leaves one that is gone.
fn shown(mut rows: Vec<WorkerRow>) -> (Vec<WorkerView>, u64) {
    let left_out = rows.len().saturating_sub(MAX_WORKERS);
    if left_out > 0 {
        let living = rows.iter().filter(|row| !row.remaining.is_zero()).count();
        let mut gone = MAX_WORKERS.saturating_sub(living);
        rows.retain(|row| {
            let stays = !row.remaining.is_zero() || gone > 0;
            gone -= usize::from(stays && row.remaining.is_zero());
            stays
        });
        rows.truncate(MAX_WORKERS);
    }
    let shown = rows.into_iter().map(worker).collect();
    (shown, u64::try_from(left_out).unwrap_or(u64::MAX))
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
            cut_off: row.cut_off,
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use attune_core::WorkerId;

    use super::*;

    #[test]
    fn of_too_many_workers_those_that_live_are_shown() {
        let row = |number: usize| WorkerRow {
            worker: WorkerId::fresh(),
            name: format!("w{number:05}"),
            pool: "default".to_owned(),
            slots: 1,
            remaining: Duration::from_secs(u64::from(number.is_multiple_of(20))),
            seen_ago: None,
            draining: false,
        };
        let (workers, left_out) = shown((0..MAX_WORKERS).map(row).collect());
        assert_eq!((workers.len(), left_out), (MAX_WORKERS, 0));
        let (workers, left_out) = shown((0..10_000).map(row).collect());
        assert_eq!((workers.len(), left_out), (MAX_WORKERS, 9_000));
        assert_eq!(workers.iter().filter(|it| it.alive).count(), 500);
        assert!(workers.is_sorted_by_key(|it| it.name.clone()));
        let (workers, left_out) = shown((0..40_000).map(row).collect());
        assert_eq!((workers.len(), left_out), (MAX_WORKERS, 39_000));
        assert!(workers.iter().all(|it| it.alive));
    }
}
