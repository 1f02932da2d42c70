//! The audit log.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use attune_core::RequestId;
use attune_store::{AuditEntry, AuditStore, StoreError, Violations};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::rows::{foreign_json, list, time, unsigned, uuid};
use crate::sql;
use crate::store::{Inner, SqliteStore};

#[async_trait]
impl AuditStore for SqliteStore {
    async fn audit_log(
        &self,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        let query = sqlx::query(sql::AUDIT_LOG)
            .bind(before.unwrap_or(i64::MAX))
            .bind(limit);
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(entry).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn violations(
        &self,
        within: Duration,
        action_refs: &[String],
    ) -> Result<Vec<Violations>, StoreError> {
        let query = sqlx::query(sql::VIOLATIONS)
            .bind(within.as_secs_f64())
            .bind(list(action_refs));
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(violations).collect::<Result<_, _>>()?)
        })
        .await
    }
}

fn entry(row: &SqliteRow) -> Result<AuditEntry, sqlx::Error> {
    let json = |name: &str| -> Result<_, sqlx::Error> {
        Ok(row.try_get::<Option<&str>, _>(name)?.map(foreign_json))
    };
    Ok(AuditEntry {
        id: row.try_get("id")?,
        at: time(row.try_get("at")?)?,
        who: row.try_get("who")?,
        what: row.try_get("what")?,
        target: row.try_get("target")?,
        reason: row.try_get("reason")?,
        before: json("before")?,
        after: json("after")?,
        request_id: RequestId(uuid(row.try_get("request_id")?)?),
    })
}

fn violations(row: &SqliteRow) -> Result<Violations, sqlx::Error> {
    Ok(Violations {
        action_ref: row.try_get("target")?,
        what: row.try_get("what")?,
        entries: unsigned(row.try_get("entries")?)?,
        last_at: time(row.try_get("last_at")?)?,
    })
}
