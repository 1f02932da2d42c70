//! Messages that nobody could use.

use std::sync::Arc;

use async_trait::async_trait;
use attune_core::RequestId;
use attune_store::{
    DeadLetter, DeadLetterFilter, DeadLetterRetention, DeadLetterStore, LETTER_OVERHEAD, NewAudit,
    NewDeadLetter, Requeue, StoreError, What,
};
use serde_json::json;
use sqlx::Row as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use tokio::task::JoinHandle;

use crate::audit;
use crate::error::Failure;
use crate::rows::{optional_time, time, unsigned, uuid};
use crate::sql;
use crate::store::{Inner, SqliteStore};

#[async_trait]
impl DeadLetterStore for SqliteStore {
    async fn add_dead_letters(&self, letters: &[NewDeadLetter]) -> Result<(), StoreError> {
        let new = letters.to_vec();
        self.task::<_, StoreError, _, _>(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| Box::pin(add(connection, new)))
                .await
        })
        .await?;
        if let Some(pruned) = self.letters_were_added(letters) {
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
        let query = sqlx::query(sql::LIST_DEAD_LETTERS)
            .bind(before.unwrap_or(i64::MAX))
            .bind(filter.source.clone())
            .bind(filter.reason.clone())
            .bind(filter.requeued)
            .bind(limit);
        self.task(async move |inner: Arc<Inner>| {
            let rows = query.fetch_all(&mut *inner.reader().await?).await?;
            Ok(rows.iter().map(letter).collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn find_dead_letter(&self, id: i64) -> Result<Option<(DeadLetter, Vec<u8>)>, StoreError> {
        let query = sqlx::query(sql::FIND_DEAD_LETTER).bind(id);
        self.task(async move |inner: Arc<Inner>| {
            let row = query.fetch_optional(&mut *inner.reader().await?).await?;
            let found = row.map(|row| Ok((letter(&row)?, row.try_get("body")?)));
            found.transpose().map_err(Failure::Sql)
        })
        .await
    }

    async fn begin_requeue(&self, requeue: &Requeue) -> Result<bool, StoreError> {
        let requeue = requeue.clone();
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| Box::pin(begin(connection, requeue)))
                .await
        })
        .await
    }

    async fn mark_requeued(&self, requeue: &Requeue) -> Result<bool, StoreError> {
        let requeue = requeue.clone();
        self.task(async move |inner: Arc<Inner>| {
            inner
                .writer
                .transaction(move |connection| Box::pin(mark(connection, requeue)))
                .await
        })
        .await
    }

    async fn prune_dead_letters(&self, keep: DeadLetterRetention) -> Result<u64, StoreError> {
        self.task(async move |inner: Arc<Inner>| prune(&inner, keep).await)
            .await
    }
}

impl SqliteStore {
    /// Removes what is too much by now, in a task of its own, when enough was added to look for it.
    pub(crate) fn letters_were_added(&self, letters: &[NewDeadLetter]) -> Option<JoinHandle<()>> {
        let keep = self.inner.letters.added(letters)?;
        let inner = Arc::clone(&self.inner);
        Some(tokio::spawn(async move {
            loop {
                let removed = prune(&inner, keep).await.map_err(StoreError::from);
                let again = inner.letters.done(removed.is_ok());
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

/// Removes what is older or more than `keep`.
pub(crate) async fn prune(inner: &Inner, keep: DeadLetterRetention) -> Result<u64, Failure> {
    let query = sqlx::query(sql::PRUNE_DEAD_LETTERS)
        .bind(keep.age.as_secs_f64())
        .bind(count(keep.bytes))
        .bind(count(LETTER_OVERHEAD));
    let removed = inner.writer.run(move |connection| {
        Box::pin(async move { Ok(query.execute(connection).await?.rows_affected()) })
    });
    removed.await
}

/// Keeps messages, inside a transaction.
pub(crate) async fn add(
    connection: &mut SqliteConnection,
    letters: Vec<NewDeadLetter>,
) -> Result<(), Failure> {
    for letter in letters {
        sqlx::query(sql::ADD_DEAD_LETTER)
            .bind(letter.message_id.to_string())
            .bind(letter.reason)
            .bind(letter.source)
            .bind(letter.body)
            .bind(count(letter.bytes))
            .bind(letter.sender)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

async fn begin(connection: &mut SqliteConnection, requeue: Requeue) -> Result<bool, Failure> {
    let letter = sqlx::query_as(sql::LETTER_TO_REQUEUE)
        .bind(requeue.id)
        .bind(count(requeue.arrivals))
        .fetch_optional(&mut *connection)
        .await?;
    let named = (requeue.intent_id(), What::DeadLetterRequeueBegun);
    note(connection, letter, requeue, named).await
}

async fn mark(connection: &mut SqliteConnection, requeue: Requeue) -> Result<bool, Failure> {
    let letter = sqlx::query_as(sql::MARK_REQUEUED)
        .bind(requeue.id)
        .bind(count(requeue.arrivals))
        .bind(requeue.who.name.clone())
        .fetch_optional(&mut *connection)
        .await?;
    let named = (requeue.request_id, What::DeadLetterRequeue);
    note(connection, letter, requeue, named).await
}

/// Notes something about putting a letter back, under this id and name in the audit log; `false`
/// when the letter is not as it was read.
async fn note(
    connection: &mut SqliteConnection,
    letter: Option<(String, String, String)>,
    requeue: Requeue,
    (request_id, what): (RequestId, What),
) -> Result<bool, Failure> {
    let Some((message_id, reason, source)) = letter else {
        return Ok(false);
    };
    let entry = NewAudit {
        request_id,
        who: requeue.who,
        what,
        target: message_id,
        reason: requeue.reason,
        before: Some(json!({"letter": requeue.id, "source": source, "reason": reason})),
        after: None,
    };
    audit::note(connection, &[entry]).await?;
    Ok(true)
}

/// A number of bytes or arrivals that fits the column; larger ones mean the same.
fn count(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn letter(row: &SqliteRow) -> Result<DeadLetter, sqlx::Error> {
    Ok(DeadLetter {
        id: row.try_get("id")?,
        message_id: uuid(row.try_get("message_id")?)?,
        reason: row.try_get("reason")?,
        source: row.try_get("source")?,
        bytes: unsigned(row.try_get("bytes")?)?,
        truncated: row.try_get("truncated")?,
        arrivals: unsigned(row.try_get("arrivals")?)?,
        received_at: time(row.try_get("received_at")?)?,
        requeued_at: optional_time(row, "requeued_at")?,
        requeued_by: row.try_get("requeued_by")?,
        sender: row.try_get("sender")?,
    })
}
