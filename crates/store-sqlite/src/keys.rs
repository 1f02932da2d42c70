//! Keys of clients.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use attune_core::Asker;
use attune_identity::{KeyHash, KeyId};
use attune_store::{
    Actor, KeyOutcome, KeyRecord, KeyRotation, KeyStanding, KeyStore, MAX_KEYS, NewAudit, NewKey,
    StoreError, audit_of_revocation, stored_grants,
};
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::error::{Failure, unreadable};
use crate::rows::{duration, json, list, optional_time, text_of, time};
use crate::store::{Inner, SqliteStore};
use crate::{audit, sql};

#[async_trait]
impl KeyStore for SqliteStore {
    async fn create_key(&self, key: &NewKey, first: bool) -> Result<KeyOutcome, StoreError> {
        let key = key.clone();
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| {
                    Box::pin(async move { create(connection, &key, first).await })
                })
                .await
        })
        .await
    }

    async fn rotate_key(&self, rotation: &KeyRotation) -> Result<KeyOutcome, StoreError> {
        let rotation = rotation.clone();
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| {
                    Box::pin(async move { rotate(connection, &rotation).await })
                })
                .await
        })
        .await
    }

    async fn revoke_key(&self, id: &KeyId, who: &Actor) -> Result<KeyOutcome, StoreError> {
        let (id, who) = (id.clone(), who.clone());
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| {
                    Box::pin(async move { revoke(connection, &id, &who).await })
                })
                .await
        })
        .await
    }

    async fn find_key(&self, id: &KeyId) -> Result<Option<KeyRecord>, StoreError> {
        let query = sqlx::query(sql::FIND_KEY).bind(id.as_str().to_owned());
        self.task(async move |inner: Arc<Inner>| {
            let row = query.fetch_optional(&mut *inner.reader().await?).await?;
            Ok(row.as_ref().map(record).transpose()?)
        })
        .await
    }

    async fn list_keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        let query = sqlx::query(sql::LIST_KEYS).bind(MAX_KEYS);
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(record).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn note_key_use(&self, id: &KeyId, ip: Option<&str>) -> Result<(), StoreError> {
        let (id, ip) = (id.as_str().to_owned(), ip.map(str::to_owned));
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| {
                    Box::pin(async move {
                        let noting = sqlx::query(sql::NOTE_KEY_USE).bind(id).bind(ip);
                        noting.execute(connection).await?;
                        Ok(())
                    })
                })
                .await
        })
        .await
    }

    async fn count_waiting(&self, asker: Asker) -> Result<u32, StoreError> {
        let query = sqlx::query_scalar(sql::COUNT_WAITING).bind(asker.0);
        self.task(async move |inner: Arc<Inner>| {
            Ok(query.fetch_one(&mut *inner.reader().await?).await?)
        })
        .await
    }
}

/// A span as SQLite adds it to a time.
fn later(span: Duration) -> String {
    format!("+{:.3} seconds", span.as_secs_f64())
}

/// Runs in a transaction that began as a write, so nobody makes a key in between.
async fn create(
    connection: &mut SqliteConnection,
    key: &NewKey,
    first: bool,
) -> Result<KeyOutcome, Failure> {
    if let Some(outcome) = judge(connection, &key.id, &key.name, first).await? {
        return Ok(outcome);
    }
    let grants = &key.grants;
    sqlx::query(sql::ADD_KEY)
        .bind(key.id.as_str().to_owned())
        .bind(key.name.clone())
        .bind(key.hash.0.to_vec())
        .bind(list(&grants.roles))
        .bind(list(&grants.actions))
        .bind(list(&grants.pools))
        .bind(grants.impersonate)
        .bind(text_of(&grants.rates))
        .bind(grants.max_waiting)
        .bind(key.who.name.clone())
        .bind(key.lifetime.map(later))
        .execute(&mut *connection)
        .await?;
    note(connection, key.audit()).await
}

async fn rotate(
    connection: &mut SqliteConnection,
    rotation: &KeyRotation,
) -> Result<KeyOutcome, Failure> {
    if let Some(outcome) = judge(connection, &rotation.id, "", false).await? {
        return Ok(outcome);
    }
    let stored = sqlx::query(sql::SUCCEED_KEY)
        .bind(rotation.old.as_str().to_owned())
        .bind(rotation.id.as_str().to_owned())
        .bind(rotation.hash.0.to_vec())
        .bind(rotation.lifetime.map(later))
        .bind(rotation.who.name.clone())
        .execute(&mut *connection)
        .await?;
    if stored.rows_affected() == 0 {
        return not_good(connection, &rotation.old).await;
    }
    sqlx::query(sql::SHORTEN_KEY)
        .bind(rotation.old.as_str().to_owned())
        .bind(later(rotation.overlap))
        .execute(&mut *connection)
        .await?;
    note(connection, rotation.audit()).await
}

async fn revoke(
    connection: &mut SqliteConnection,
    id: &KeyId,
    who: &Actor,
) -> Result<KeyOutcome, Failure> {
    let revoked = sqlx::query(sql::REVOKE_KEY)
        .bind(id.as_str().to_owned())
        .bind(who.name.clone())
        .execute(&mut *connection)
        .await?;
    if revoked.rows_affected() == 0 {
        return Ok(match not_good(connection, id).await? {
            // It is revoked, which is what was asked for.
            KeyOutcome::Over => KeyOutcome::Stored,
            outcome => outcome,
        });
    }
    note(connection, audit_of_revocation(id, who)).await
}

/// Why a key cannot be made.
async fn judge(
    connection: &mut SqliteConnection,
    id: &KeyId,
    name: &str,
    first: bool,
) -> Result<Option<KeyOutcome>, Failure> {
    let row = sqlx::query(sql::JUDGE_KEY)
        .bind(id.as_str().to_owned())
        .bind(name.to_owned())
        .fetch_one(connection)
        .await?;
    let (many, id_taken, name_taken): (i64, bool, bool) = (
        row.try_get("many")?,
        row.try_get("id_taken")?,
        row.try_get("name_taken")?,
    );
    Ok(match many {
        _ if id_taken || name_taken || (first && many > 0) => Some(KeyOutcome::Taken),
        many if many >= i64::from(MAX_KEYS) => Some(KeyOutcome::TooMany),
        _ => None,
    })
}

/// Whether a key that could not be changed is there.
async fn not_good(connection: &mut SqliteConnection, id: &KeyId) -> Result<KeyOutcome, Failure> {
    let row = sqlx::query(sql::FIND_KEY)
        .bind(id.as_str().to_owned())
        .fetch_optional(connection)
        .await?;
    Ok(match row.as_ref().map(record).transpose()? {
        Some(key) if matches!(key.standing, KeyStanding::Good(_)) => KeyOutcome::Replaced,
        Some(_) => KeyOutcome::Over,
        None => KeyOutcome::Unknown,
    })
}

async fn note(connection: &mut SqliteConnection, entry: NewAudit) -> Result<KeyOutcome, Failure> {
    audit::note(connection, &[entry]).await?;
    Ok(KeyOutcome::Stored)
}

fn record(row: &SqliteRow) -> Result<KeyRecord, sqlx::Error> {
    let id: &str = row.try_get("key_id")?;
    let hash: Vec<u8> = row.try_get("hash")?;
    let revoked = optional_time(row, "revoked")?;
    let left: Option<f64> = row.try_get("left_seconds")?;
    let roles: Vec<String> = json(row.try_get("roles")?)?;
    Ok(KeyRecord {
        id: id.parse().map_err(|error: String| unreadable(error))?,
        hash: KeyHash(
            hash.try_into()
                .map_err(|_| unreadable("the hash of a key has not 32 bytes"))?,
        ),
        name: row.try_get("name")?,
        grants: stored_grants(
            &roles,
            json(row.try_get("actions")?)?,
            json(row.try_get("pools")?)?,
            row.try_get("impersonate")?,
            row.try_get::<Option<&str>, _>("rate")?,
            row.try_get("max_waiting")?,
        ),
        standing: match left {
            _ if revoked.is_some() => KeyStanding::Revoked,
            None => KeyStanding::Good(None),
            Some(left) if left > 0.0 => KeyStanding::Good(Some(duration(left))),
            Some(_) => KeyStanding::Expired,
        },
        created: time(row.try_get("created")?)?,
        created_by: row.try_get("created_by")?,
        expires: optional_time(row, "expires")?,
        revoked,
        revoked_by: row.try_get("revoked_by")?,
        last_used: optional_time(row, "last_used")?,
        last_ip: row.try_get("last_ip")?,
    })
}
