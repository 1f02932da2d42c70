//! The audit log.

use std::time::Duration;

use async_trait::async_trait;
use attune_core::RequestId;
use attune_store::{
    AuditEntry, AuditStore, ChainLink, NewAudit, ProcessStart, RawAudit, StoreError, StoredOrigin,
    Violations,
};
use sqlx::Row as _;
use sqlx::postgres::{PgArguments, PgRow};
use uuid::Uuid;

use crate::bind::Binds;
use crate::failure::{Failure, unreadable};
use crate::partitions::micros;
use crate::sessions::Purpose;
use crate::time::{self, Time};
use crate::{PostgresStore, sql, text};

#[async_trait]
impl AuditStore for PostgresStore {
    async fn audit_log(
        &self,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<AuditEntry>, StoreError> {
        let query = sqlx::query(sql::AUDIT_LOG)
            .bind(before.unwrap_or(i64::MAX))
            .bind(i64::from(limit));
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows = query.fetch_all(&pool).await?;
                rows.iter().map(entry).collect()
            })
            .await
    }

    async fn audit_chain(&self, after: i64, limit: u32) -> Result<Vec<ChainLink>, StoreError> {
        let query = sqlx::query(sql::AUDIT_CHAIN)
            .bind(after)
            .bind(i64::from(limit));
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows = query.fetch_all(&pool).await?;
                rows.iter().map(link).collect()
            })
            .await
    }

    async fn unchained_audit(&self) -> Result<u64, StoreError> {
        let query = sqlx::query_scalar(sql::UNCHAINED_AUDIT);
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let many: i64 = query.fetch_one(&pool).await?;
                Ok(many.unsigned_abs())
            })
            .await
    }

    async fn note_audit(&self, entry: &NewAudit) -> Result<(), StoreError> {
        let query = sqlx::query_with(sql::ADD_AUDIT, parameters(std::slice::from_ref(entry))?);
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                query.execute(&pool).await?;
                Ok(())
            })
            .await
    }

    async fn note_start(&self, start: &ProcessStart) -> Result<(), StoreError> {
        let query = sqlx::query(sql::NOTE_START)
            .bind(RequestId::fresh().0)
            .bind(text::text(&start.account).into_owned())
            .bind(text::text(&start.target).into_owned())
            .bind(start.version.clone())
            .bind(start.settings_sha256.clone());
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                query.execute(&pool).await?;
                Ok(())
            })
            .await
    }

    async fn violations(
        &self,
        within: Duration,
        action_refs: &[String],
    ) -> Result<Vec<Violations>, StoreError> {
        let query = sqlx::query(sql::VIOLATIONS)
            .bind(micros(within))
            .bind(action_refs.to_vec());
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows = query.fetch_all(&pool).await?;
                rows.iter().map(violations).collect()
            })
            .await
    }
}

/// The parameters of `sql/add_audit.sql`.
pub(crate) fn parameters(entries: &[NewAudit]) -> Result<PgArguments, StoreError> {
    // PostgreSQL refuses an escaped NUL in JSON only where it is read as text, so it is kept.
    let json = |value: &Option<serde_json::Value>| value.as_ref().map(ToString::to_string);
    let mut binds = Binds::default();
    binds.column(entries, |entry| entry.request_id.0);
    binds.column(entries, |entry| text::text(&entry.who));
    binds.column(entries, |entry| entry.what.name());
    binds.column(entries, |entry| text::text(&entry.target));
    binds.column(entries, |entry| text::optional(entry.reason.as_ref()));
    binds.column(entries, |entry| json(&entry.before));
    binds.column(entries, |entry| json(&entry.after));
    for column in 0..4 {
        binds.column(entries, |entry| entry.who.origin.columns()[column].clone());
    }
    binds.finish()
}

fn entry(row: &PgRow) -> Result<AuditEntry, Failure> {
    let json = |name: &str| -> Result<_, Failure> {
        Ok(row.try_get::<Option<String>, _>(name)?.map(text::value))
    };
    Ok(AuditEntry {
        id: row.try_get("id")?,
        at: time::time(row, "at")?,
        who: row.try_get("who")?,
        what: row.try_get("what")?,
        target: row.try_get("target")?,
        reason: row.try_get("reason")?,
        before: json("before")?,
        after: json("after")?,
        request_id: RequestId(row.try_get::<Uuid, _>("request_id")?),
        origin: origin(row)?,
    })
}

fn origin(row: &PgRow) -> Result<StoredOrigin, sqlx::Error> {
    Ok(StoredOrigin {
        actor_kind: row.try_get("actor_kind")?,
        key_id: row.try_get("key_id")?,
        source_ip: row.try_get("source_ip")?,
        via: row.try_get("via")?,
    })
}

fn link(row: &PgRow) -> Result<ChainLink, Failure> {
    let hash: Vec<u8> = row.try_get("hash")?;
    let entry = match row.try_get::<Option<i64>, _>("id")? {
        None => None,
        Some(id) => Some(RawAudit {
            id,
            at_micros: row.try_get("at_micros")?,
            who: row.try_get("who")?,
            what: row.try_get("what")?,
            target: row.try_get("target")?,
            reason: row.try_get("reason")?,
            before: row.try_get("before")?,
            after: row.try_get("after")?,
            request_id: RequestId(row.try_get::<Uuid, _>("request_id")?),
            origin: origin(row)?,
        }),
    };
    Ok(ChainLink {
        no: row.try_get("no")?,
        hash: hash
            .try_into()
            .map_err(|_| unreadable("the audit log", "a hash has not 32 bytes"))?,
        entry,
    })
}

fn violations(row: &PgRow) -> Result<Violations, Failure> {
    let Time(last_at) = row.try_get(3)?;
    Ok(Violations {
        action_ref: row.try_get(0)?,
        what: row.try_get(1)?,
        entries: row.try_get::<i64, _>(2)?.unsigned_abs(),
        last_at,
    })
}
