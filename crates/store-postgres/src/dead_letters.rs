//! Messages that nobody could use.

use std::collections::BTreeMap;

use async_trait::async_trait;
use attune_core::RequestId;
use attune_store::{
    DeadLetter, DeadLetterFilter, DeadLetterRetention, DeadLetterStore, LETTER_OVERHEAD,
    NewDeadLetter, Requeue, StoreError, What,
};
use sqlx::Row as _;
use sqlx::postgres::{PgArguments, PgRow};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::bind::Binds;
use crate::commit::counter;
use crate::db::Db;
use crate::failure::Failure;
use crate::partitions::micros;
use crate::sessions::Purpose;
use crate::{PostgresStore, sql, text, time};

#[async_trait]
impl DeadLetterStore for PostgresStore {
    async fn add_dead_letters(&self, letters: &[NewDeadLetter]) -> Result<(), StoreError> {
        let parameters = parameters(letters)?;
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                sqlx::query_with(sql::ADD_DEAD_LETTERS, parameters)
                    .execute(&pool)
                    .await?;
                Ok(())
            })
            .await?;
        if let Some(pruned) = self.db.letters_were_added(letters) {
            // What became of it is in the log; these letters are kept.
            let _ = pruned.await;
        }
        Ok(())
    }

    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        let clean = |value: &Option<String>| text::optional(value.as_ref()).map(String::from);
        let query = sqlx::query(sql::LIST_DEAD_LETTERS)
            .bind(before.unwrap_or(i64::MAX))
            .bind(clean(&filter.source))
            .bind(clean(&filter.reason))
            .bind(filter.requeued)
            .bind(i64::from(limit));
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let rows = query.fetch_all(&pool).await?;
                rows.iter().map(letter).collect()
            })
            .await
    }

    async fn find_dead_letter(&self, id: i64) -> Result<Option<(DeadLetter, Vec<u8>)>, StoreError> {
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                let row = sqlx::query(sql::FIND_DEAD_LETTER)
                    .bind(id)
                    .fetch_optional(&pool)
                    .await?;
                row.map(|row| Ok((letter(&row)?, row.try_get("body")?)))
                    .transpose()
            })
            .await
    }

    async fn begin_requeue(&self, requeue: &Requeue) -> Result<bool, StoreError> {
        let named = (requeue.intent_id(), What::DeadLetterRequeueBegun);
        self.note_requeue(sql::BEGIN_REQUEUE, requeue, named).await
    }

    async fn mark_requeued(&self, requeue: &Requeue) -> Result<bool, StoreError> {
        let named = (requeue.request_id, What::DeadLetterRequeue);
        self.note_requeue(sql::MARK_REQUEUED, requeue, named).await
    }

    async fn prune_dead_letters(&self, keep: DeadLetterRetention) -> Result<u64, StoreError> {
        self.db.remove_letters(keep).await
    }
}

impl Db {
    async fn remove_letters(&self, keep: DeadLetterRetention) -> Result<u64, StoreError> {
        let query = sqlx::query(sql::PRUNE_DEAD_LETTERS)
            .bind(micros(keep.age))
            .bind(counter(keep.bytes))
            .bind(counter(LETTER_OVERHEAD));
        let pool = self.general();
        self.run(Purpose::General, async move {
            Ok(query.execute(&pool).await?.rows_affected())
        })
        .await
    }

    /// Removes what is too much by now, in a task of its own, when enough was added to look for it.
    pub(crate) fn letters_were_added(&self, letters: &[NewDeadLetter]) -> Option<JoinHandle<()>> {
        let keep = self.letters.added(letters)?;
        let db = self.clone();
        Some(tokio::spawn(async move {
            loop {
                let removed = db.remove_letters(keep).await;
                let again = db.letters.done(removed.is_ok());
                match removed {
                    Ok(0) => {}
                    Ok(removed) => tracing::warn!(
                        removed,
                        kept.bytes = keep.bytes,
                        "there were more dead letters than are kept; the oldest were removed"
                    ),
                    Err(error) => tracing::warn!(%error, "dead letters cannot be pruned"),
                }
                if !again {
                    return;
                }
            }
        }))
    }
}

impl PostgresStore {
    /// Notes something about putting a letter back, under this id and name in the audit log;
    /// `false` when the letter is not as it was read.
    async fn note_requeue(
        &self,
        statement: &'static str,
        requeue: &Requeue,
        (entry_id, what): (RequestId, What),
    ) -> Result<bool, StoreError> {
        let [kind, key, address, via] = requeue.who.origin.columns();
        let query = sqlx::query_scalar(statement)
            .bind(requeue.id)
            .bind(counter(requeue.arrivals))
            .bind(entry_id.0)
            .bind(text::text(&requeue.who).into_owned())
            .bind(what.name())
            .bind(text::optional(requeue.reason.as_ref()).map(String::from))
            .bind(kind)
            .bind(key)
            .bind(address)
            .bind(via);
        let pool = self.db.general();
        self.db
            .run(Purpose::General, async move {
                Ok(query.fetch_one(&pool).await?)
            })
            .await
    }
}

/// The parameters of `sql/add_dead_letters.sql`.
pub(crate) fn parameters(letters: &[NewDeadLetter]) -> Result<PgArguments, StoreError> {
    // One statement can write a row only once: of several the last one counts.
    let letters: BTreeMap<Uuid, &NewDeadLetter> = letters
        .iter()
        .map(|letter| (letter.message_id, letter))
        .collect();
    let rows = || letters.values();
    let mut binds = Binds::default();
    binds.column(rows(), |letter| letter.message_id);
    binds.column(rows(), |letter| text::text(&letter.reason));
    binds.column(rows(), |letter| text::text(&letter.source));
    binds.column(rows(), |letter| letter.body.as_slice());
    binds.column(rows(), |letter| counter(letter.bytes));
    binds.column(rows(), |letter| text::optional(letter.sender.as_ref()));
    binds.finish()
}

fn letter(row: &PgRow) -> Result<DeadLetter, Failure> {
    let count = |name: &str| row.try_get::<i64, _>(name).map(i64::unsigned_abs);
    Ok(DeadLetter {
        id: row.try_get("id")?,
        message_id: row.try_get("message_id")?,
        reason: row.try_get("reason")?,
        source: row.try_get("source")?,
        bytes: count("bytes")?,
        truncated: row.try_get("truncated")?,
        arrivals: count("arrivals")?,
        received_at: time::time(row, "received_at")?,
        requeued_at: time::optional(row, "requeued_at")?,
        requeued_by: row.try_get("requeued_by")?,
        sender: row.try_get("sender")?,
    })
}
