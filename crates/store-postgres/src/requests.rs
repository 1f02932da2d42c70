//! What became of requests that came before.

use std::collections::{HashMap, HashSet};

use attune_core::{ExecutionId, RequestId};
use attune_store::KnownRequest;
use chrono::{DateTime, Utc};
use sqlx::postgres::PgPool;
use uuid::Uuid;

use crate::failure::Failure;
use crate::partitions::status;
use crate::sql;
use crate::time::Time;

/// A row of `sql/look_up_requests.sql`: request, execution, digest, when it was accepted, and the
/// status while it waits or holds a slot.
type Row = (Uuid, i64, i64, Time, Option<String>);

/// Those of the asked requests that are known. Of several rows the oldest counts whose execution is
/// still there.
pub(crate) async fn known(pool: &PgPool, asked: Vec<Uuid>) -> Result<Vec<KnownRequest>, Failure> {
    if asked.is_empty() {
        return Ok(Vec::new());
    }
    let rows: Vec<Row> = sqlx::query_as(sql::LOOK_UP_REQUESTS)
        .bind(asked)
        .fetch_all(pool)
        .await?;
    let ended = ended(pool, &rows).await?;
    let mut found = Vec::with_capacity(rows.len());
    let mut seen = HashSet::with_capacity(rows.len());
    for (request, execution, digest, _, active) in rows {
        let Some(text) = active.as_ref().or(ended.get(&execution)) else {
            continue;
        };
        if seen.insert(request) {
            found.push(KnownRequest {
                request_id: RequestId(request),
                execution_id: ExecutionId(execution),
                digest,
                status: status(text).map_err(|failure| failure.of_execution(execution))?,
            });
        }
    }
    Ok(found)
}

/// How those ended that are not active. Whatever left the active executions before the rows were read
/// is in the history by now.
async fn ended(pool: &PgPool, rows: &[Row]) -> Result<HashMap<i64, String>, Failure> {
    let mut ids = Vec::new();
    let mut since: Option<DateTime<Utc>> = None;
    for (_, execution, _, Time(created), active) in rows {
        if active.is_none() {
            ids.push(*execution);
            since = Some(since.map_or(*created, |since| since.min(*created)));
        }
    }
    let Some(since) = since else {
        return Ok(HashMap::new());
    };
    let ended: Vec<(i64, String)> = sqlx::query_as(sql::LOOK_UP_HISTORY)
        .bind(ids)
        .bind(since)
        .fetch_all(pool)
        .await?;
    Ok(ended.into_iter().collect())
}
