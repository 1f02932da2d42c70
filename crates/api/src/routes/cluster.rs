//! `/api/v1/cluster` and `/api/v1/audit-log`: who is there, and what was done by hand.

use attune_core::millis;
use attune_store::{ExecutorRow, Lease, WorkerRow};
use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;

use super::App;
use crate::answers::PageBudget;
use crate::error::ApiError;
use crate::query::Params;
use attune_api_types::{AuditEntry, AuditList, Cluster, ExecutorView, PartitionView, WorkerView};

/// What an entry is thought to need, in bytes, as long as its page is not read.
const ROW_BYTES: usize = 1024;

/// Executors, partitions and workers as their leases show them.
#[utoipa::path(
    get, path = "/cluster", tag = "operations", operation_id = "show_cluster",
    responses((status = 200, description = "Who is there.", body = Cluster))
)]
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

/// What was done by hand and what was found wrong, the newest first, in pages.
#[utoipa::path(
    get, path = "/audit-log", tag = "operations", operation_id = "list_audit_log",
    params(
        ("limit" = Option<u32>, Query, minimum = 1, description = "How many to show: 50 unless given, at most `api.max_page_size`."),
        ("before" = Option<i64>, Query, description = "The `next` of the page before."),
    ),
    responses((status = 200, description = "A page, the newest first.", body = AuditList))
)]
pub(crate) async fn audit_log(State(app): State<App>, uri: Uri) -> Result<Response, ApiError> {
    let mut params = Params::of(&uri)?;
    let before: Option<i64> = params.parse("before")?;
    let limit = params.limit(app.options.max_page_size)?;
    params.end("before, limit")?;
    let memory = app.memory.reserve(limit as usize * ROW_BYTES).await?;
    let mut found = app.ports.audit.audit_log(before, limit + 1).await?;
    let more = found.len() > limit as usize;
    found.truncate(limit as usize);
    let mut budget = PageBudget::new(app.options.page_bytes);
    let all = found.len();
    let entries: Vec<AuditEntry> = found
        .into_iter()
        .map(entry)
        .take_while(|entry| budget.takes(entry))
        .collect();
    let more = more || entries.len() < all;
    let next = entries.last().filter(|_| more).map(|entry| entry.id);
    Ok(memory.json(&AuditList { entries, next }))
}

fn entry(found: attune_store::AuditEntry) -> AuditEntry {
    AuditEntry {
        id: found.id,
        at: found.at,
        who: found.who,
        what: found.what,
        target: found.target,
        reason: found.reason,
        before: found.before,
        after: found.after,
        request_id: found.request_id,
    }
}
