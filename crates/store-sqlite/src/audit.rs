//! The audit log.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use attune_core::RequestId;
use attune_store::{
    AuditEntry, AuditStore, ChainLink, NewAudit, ProcessStart, RawAudit, StoreError, StoredOrigin,
    Violations,
};
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::error::{Failure, unreadable};
use crate::rows::{foreign_json, list, time, unsigned, uuid};
use crate::store::{Inner, SqliteStore};
use crate::{batch, sql};

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

    async fn audit_chain(&self, after: i64, limit: u32) -> Result<Vec<ChainLink>, StoreError> {
        let query = sqlx::query(sql::AUDIT_CHAIN).bind(after).bind(limit);
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(link).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn unchained_audit(&self) -> Result<u64, StoreError> {
        let query = sqlx::query_scalar(sql::UNCHAINED_AUDIT);
        self.task(async move |inner: Arc<Inner>| {
            let many: i64 = query.fetch_one(&mut *inner.reader().await?).await?;
            Ok(many.unsigned_abs())
        })
        .await
    }

    async fn note_audit(&self, entry: &NewAudit) -> Result<(), StoreError> {
        let entry = entry.clone();
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| {
                    Box::pin(async move { note(connection, &[entry]).await })
                })
                .await
        })
        .await
    }

    async fn note_start(&self, start: &ProcessStart) -> Result<(), StoreError> {
        self.note_audit(&start.audit()).await
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

/// Writes entries down, each a link of the chain. Only in a transaction that began as a write.
pub(crate) async fn note(
    connection: &mut SqliteConnection,
    entries: &[NewAudit],
) -> Result<(), Failure> {
    if entries.is_empty() {
        return Ok(());
    }
    sqlx::query(sql::INSERT_AUDIT)
        .bind(batch::audit_list(entries))
        .execute(&mut *connection)
        .await?;
    chain(connection).await?;
    Ok(())
}

/// Makes links of the entries that are none yet.
pub(crate) async fn chain(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let head = sqlx::query(sql::AUDIT_CHAIN_HEAD)
        .fetch_optional(&mut *connection)
        .await?;
    let (mut no, mut hash) = match head {
        Some(row) => (row.try_get("no")?, hash_of(&row)?),
        None => (0_i64, [0; 32]),
    };
    let rows = sqlx::query(sql::AUDIT_TO_CHAIN)
        .fetch_all(&mut *connection)
        .await?;
    for row in &rows {
        let entry = raw(row, row.try_get("id")?)?;
        (no, hash) = (no + 1, entry.link(&hash));
        sqlx::query(sql::ADD_AUDIT_LINK)
            .bind(no)
            .bind(entry.id)
            .bind(hash.to_vec())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

fn link(row: &SqliteRow) -> Result<ChainLink, sqlx::Error> {
    let id: Option<i64> = row.try_get("id")?;
    Ok(ChainLink {
        no: row.try_get("no")?,
        hash: hash_of(row)?,
        entry: id.map(|id| raw(row, id)).transpose()?,
    })
}

fn hash_of(row: &SqliteRow) -> Result<[u8; 32], sqlx::Error> {
    let hash: Vec<u8> = row.try_get("hash")?;
    hash.try_into()
        .map_err(|_| unreadable("a hash of the audit log has not 32 bytes"))
}

fn raw(row: &SqliteRow, id: i64) -> Result<RawAudit, sqlx::Error> {
    Ok(RawAudit {
        id,
        at_micros: time(row.try_get("at")?)?.timestamp_micros(),
        who: row.try_get("who")?,
        what: row.try_get("what")?,
        target: row.try_get("target")?,
        reason: row.try_get("reason")?,
        before: row.try_get("before")?,
        after: row.try_get("after")?,
        request_id: RequestId(uuid(row.try_get("request_id")?)?),
        origin: origin(row)?,
    })
}

fn origin(row: &SqliteRow) -> Result<StoredOrigin, sqlx::Error> {
    Ok(StoredOrigin {
        actor_kind: row.try_get("actor_kind")?,
        key_id: row.try_get("key_id")?,
        source_ip: row.try_get("source_ip")?,
        via: row.try_get("via")?,
    })
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
        origin: origin(row)?,
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
