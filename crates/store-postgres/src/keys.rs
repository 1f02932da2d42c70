//! Keys of clients.

use std::time::Duration;

use async_trait::async_trait;
use attune_core::Asker;
use attune_identity::{KeyHash, KeyId};
use attune_store::{
    Actor, KeyOutcome, KeyRecord, KeyRotation, KeyStanding, KeyStore, MAX_KEYS, NewAudit, NewKey,
    StoreError, audit_of_revocation, stored_grants,
};
use sqlx::Row as _;
use sqlx::postgres::{PgArguments, PgPool, PgRow, PgTransaction};

use crate::failure::{Failure, unreadable};
use crate::partitions::micros;
use crate::sessions::Purpose;
use crate::{PostgresStore, audit, sql, text, time};

#[async_trait]
impl KeyStore for PostgresStore {
    async fn create_key(&self, key: &NewKey, first: bool) -> Result<KeyOutcome, StoreError> {
        let key = key.clone();
        let pool = self.db.general();
        self.db
            .run(
                Purpose::General,
                async move { create(&pool, &key, first).await },
            )
            .await
    }

    async fn rotate_key(&self, rotation: &KeyRotation) -> Result<KeyOutcome, StoreError> {
        let rotation = rotation.clone();
        let pool = self.db.general();
        self.db
            .run(
                Purpose::General,
                async move { rotate(&pool, &rotation).await },
            )
            .await
    }

    async fn revoke_key(&self, id: &KeyId, who: &Actor) -> Result<KeyOutcome, StoreError> {
        let (id, who) = (id.clone(), who.clone());
        let pool = self.db.general();
        self.db
            .run(
                Purpose::General,
                async move { revoke(&pool, &id, &who).await },
            )
            .await
    }

    async fn find_key(&self, id: &KeyId) -> Result<Option<KeyRecord>, StoreError> {
        let query = sqlx::query(sql::FIND_KEY).bind(id.as_str().to_owned());
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let row = query.fetch_optional(&pool).await?;
                row.as_ref().map(record).transpose()
            })
            .await
    }

    async fn list_keys(&self) -> Result<Vec<KeyRecord>, StoreError> {
        let query = sqlx::query(sql::LIST_KEYS).bind(i64::from(MAX_KEYS));
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows = query.fetch_all(&pool).await?;
                rows.iter().map(record).collect()
            })
            .await
    }

    async fn note_key_use(&self, id: &KeyId, ip: Option<&str>) -> Result<(), StoreError> {
        let query = sqlx::query(sql::NOTE_KEY_USE)
            .bind(id.as_str().to_owned())
            .bind(ip.map(|ip| text::text(ip).into_owned()));
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                query.execute(&pool).await?;
                Ok(())
            })
            .await
    }

    async fn count_waiting(&self, asker: Asker) -> Result<u32, StoreError> {
        let pool = self.db.general();
        let counting = async move {
            let query = sqlx::query_scalar(sql::COUNT_WAITING).bind(asker.0);
            let many: i64 = query.fetch_one(&pool).await?;
            Ok(u32::try_from(many).unwrap_or(u32::MAX))
        };
        self.db.run(Purpose::General, counting).await
    }
}

async fn create(pool: &PgPool, key: &NewKey, first: bool) -> Result<KeyOutcome, Failure> {
    let mut transaction = pool.begin().await?;
    let taken = judge(&mut transaction, &key.id, &key.name, first).await?;
    if let Some(outcome) = taken {
        return Ok(outcome);
    }
    let grants = &key.grants;
    let texts = |all: &[attune_identity::Pattern]| -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    };
    let roles: Vec<String> = grants.roles.iter().map(ToString::to_string).collect();
    let rates = serde_json::to_string(&grants.rates)
        .map_err(|error| unreadable("the rates of a key", error))?;
    sqlx::query(sql::ADD_KEY)
        .bind(key.id.as_str())
        .bind(text::text(&key.name))
        .bind(&key.hash.0[..])
        .bind(roles)
        .bind(texts(&grants.actions))
        .bind(texts(&grants.pools))
        .bind(grants.impersonate)
        .bind(rates)
        .bind(
            grants
                .max_waiting
                .map(|it| i32::try_from(it).unwrap_or(i32::MAX)),
        )
        .bind(text::text(&key.who))
        .bind(key.lifetime.map(micros))
        .execute(&mut *transaction)
        .await?;
    finish(transaction, key.audit()).await
}

async fn rotate(pool: &PgPool, rotation: &KeyRotation) -> Result<KeyOutcome, Failure> {
    let mut transaction = pool.begin().await?;
    let taken = judge(&mut transaction, &rotation.id, "", false).await?;
    if let Some(outcome) = taken {
        return Ok(outcome);
    }
    let stored = sqlx::query(sql::ROTATE_KEY)
        .bind(rotation.old.as_str())
        .bind(rotation.id.as_str())
        .bind(&rotation.hash.0[..])
        .bind(micros(rotation.overlap))
        .bind(rotation.lifetime.map(micros))
        .bind(text::text(&rotation.who))
        .execute(&mut *transaction)
        .await?;
    if stored.rows_affected() == 0 {
        return not_good(&mut transaction, &rotation.old).await;
    }
    finish(transaction, rotation.audit()).await
}

async fn revoke(pool: &PgPool, id: &KeyId, who: &Actor) -> Result<KeyOutcome, Failure> {
    let mut transaction = pool.begin().await?;
    let revoked = sqlx::query(sql::REVOKE_KEY)
        .bind(id.as_str())
        .bind(text::text(who))
        .execute(&mut *transaction)
        .await?;
    if revoked.rows_affected() == 0 {
        return Ok(match not_good(&mut transaction, id).await? {
            // It is revoked, which is what was asked for.
            KeyOutcome::Over => KeyOutcome::Stored,
            outcome => outcome,
        });
    }
    finish(transaction, audit_of_revocation(id, who)).await
}

/// Why a key cannot be made, under a lock that lets nobody else make one.
async fn judge(
    transaction: &mut PgTransaction<'_>,
    id: &KeyId,
    name: &str,
    first: bool,
) -> Result<Option<KeyOutcome>, Failure> {
    sqlx::query(sql::LOCK_KEYS)
        .execute(&mut **transaction)
        .await?;
    let (many, id_taken, name_taken): (i64, bool, bool) = sqlx::query_as(sql::JUDGE_KEY)
        .bind(id.as_str())
        .bind(text::text(name))
        .fetch_one(&mut **transaction)
        .await?;
    Ok(match many {
        _ if id_taken || name_taken || (first && many > 0) => Some(KeyOutcome::Taken),
        many if many >= i64::from(MAX_KEYS) => Some(KeyOutcome::TooMany),
        _ => None,
    })
}

/// Whether a key that could not be changed is there.
async fn not_good(transaction: &mut PgTransaction<'_>, id: &KeyId) -> Result<KeyOutcome, Failure> {
    let row = sqlx::query(sql::FIND_KEY)
        .bind(id.as_str())
        .fetch_optional(&mut **transaction)
        .await?;
    Ok(match row.as_ref().map(record).transpose()? {
        Some(key) if matches!(key.standing, KeyStanding::Good(_)) => KeyOutcome::Replaced,
        Some(_) => KeyOutcome::Over,
        None => KeyOutcome::Unknown,
    })
}

async fn finish(
    mut transaction: PgTransaction<'_>,
    entry: NewAudit,
) -> Result<KeyOutcome, Failure> {
    let parameters: PgArguments = audit::parameters(&[entry])?;
    sqlx::query_with(sql::ADD_AUDIT, parameters)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(KeyOutcome::Stored)
}

fn record(row: &PgRow) -> Result<KeyRecord, Failure> {
    let id: String = row.try_get("key_id")?;
    let hash: Vec<u8> = row.try_get("hash")?;
    let revoked = time::optional(row, "revoked")?;
    let left: Option<i64> = row.try_get("left_micros")?;
    let roles: Vec<String> = row.try_get("roles")?;
    Ok(KeyRecord {
        id: id.parse().map_err(|error| unreadable("a key", error))?,
        hash: KeyHash(
            hash.try_into()
                .map_err(|_| unreadable("a key", "its hash has not 32 bytes"))?,
        ),
        name: row.try_get("name")?,
        grants: stored_grants(
            &roles,
            row.try_get("actions")?,
            row.try_get("pools")?,
            row.try_get("impersonate")?,
            row.try_get::<Option<&str>, _>("rate")?,
            row.try_get::<Option<i32>, _>("max_waiting")?.map(i64::from),
        ),
        standing: match left.map(u64::try_from) {
            _ if revoked.is_some() => KeyStanding::Revoked,
            None => KeyStanding::Good(None),
            Some(Ok(left)) if left > 0 => KeyStanding::Good(Some(Duration::from_micros(left))),
            Some(_) => KeyStanding::Expired,
        },
        created: time::time(row, "created")?,
        created_by: row.try_get("created_by")?,
        expires: time::optional(row, "expires")?,
        revoked,
        revoked_by: row.try_get("revoked_by")?,
        last_used: time::optional(row, "last_used")?,
        last_ip: row.try_get("last_ip")?,
    })
}
