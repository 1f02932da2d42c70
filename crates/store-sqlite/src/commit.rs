//! Writing a batch: everything or nothing.

use attune_core::PartitionId;
use attune_store::{Committed, GrantedBody, MAX_BODIES_BYTES, StoreError};
use futures_util::TryStreamExt as _;
use sqlx::Executor as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::batch::BatchLists;
use crate::error::{Failure, from_sqlx};
use crate::rows::{body, partition};
use crate::script::Script;
use crate::{audit, dead_letters, sql};

/// Writes a batch in a transaction of its own, if the writer owns what it writes about. Lists that are
/// empty cost nothing.
pub(crate) async fn write(
    connection: &mut SqliteConnection,
    lists: BatchLists,
) -> Result<Committed, Failure> {
    let mut script = Script::default();
    script.add("BEGIN IMMEDIATE", []);
    let fences = lists.fences.map(|fences| [lists.owner, fences]);
    if let Some(fences) = &fences {
        script.add(sql::DEMAND_FENCES, fences.clone());
    }
    let at = lists.at;
    let has_audit = lists.audit.is_some();
    for (statement, items) in [
        (sql::INSERT_ACTIVE, lists.inserts),
        (sql::INSERT_INSTANT, lists.instant),
        (sql::INSERT_REQUEST, lists.requests),
    ] {
        if let Some(items) = items {
            script.add(statement, [items, at.clone()]);
        }
    }
    for (statement, items) in [
        (sql::REVOKE, lists.revocations),
        (sql::MARK_CANCELLED, lists.marks),
        (sql::START, lists.starts),
    ] {
        if let Some(items) = items {
            script.add(statement, [items]);
        }
    }
    let grants = lists.grants.clone();
    let grant = grants.map(|grants| script.add(sql::GRANT, [grants, at.clone()]));
    if let Some(put_back) = lists.put_back {
        script.add(sql::PUT_BACK, [put_back]);
    }
    if let Some(moves) = lists.moves {
        script.add(sql::MOVE_EXECUTIONS, [moves]);
    }
    let end = lists.ends.map(|ends| {
        script.add(sql::END_INTO_HISTORY, [ends, at]);
        script.add(sql::END_DELETE, [lists.end_ids])
    });
    for (statement, items) in [
        (sql::UPSERT_TOTALS, lists.totals),
        (sql::WRITE_PROGRESS, lists.progress),
        (sql::WRITE_POLICY_PROGRESS, lists.policies),
        (sql::UPSERT_METERS, lists.meters),
        (sql::INSERT_AUDIT, lists.audit),
    ] {
        if let Some(items) = items {
            script.add(statement, [items]);
        }
    }
    let has_letters = !lists.letters.is_empty();
    let has_more = has_letters || has_audit;
    if !has_more {
        script.add("COMMIT", []);
    }
    let mut granted = Bodies::default();
    let changed = script.run(connection, |place, row| {
        if Some(place) == grant {
            granted.add(&row);
        }
        Ok(())
    });
    let changed = match changed.await {
        Ok(changed) => changed,
        Err(error) => return Err(why(connection, fences, error).await),
    };
    if has_letters {
        dead_letters::add(connection, lists.letters).await?;
    }
    if has_audit {
        audit::chain(connection).await?;
    }
    if has_more {
        connection.execute("COMMIT").await?;
    }
    if let Some(grants) = lists.grants
        && granted.rows < lists.grant_count
    {
        // Some had been written before: this batch is repeated. Asked now, the statement gives
        // the bodies of both, because those that were just written look the same. Nobody else has
        // written meanwhile, since this connection is the one that does.
        granted = bodies_of(connection, grants).await.map_err(unknown)?;
    }
    Ok(Committed {
        granted: granted.bodies,
        ended: end.map_or(0, |end| changed[end]),
    })
}

async fn bodies_of(connection: &mut SqliteConnection, grants: String) -> sqlx::Result<Bodies> {
    let mut rows = sqlx::query(sql::GRANTED_BODIES)
        .bind(grants)
        .fetch(connection);
    let mut bodies = Bodies::default();
    while let Some(row) = rows.try_next().await? {
        bodies.add(&row);
    }
    Ok(bodies)
}

/// The failure of something after a batch was written: whoever gets it must not believe that nothing was.
fn unknown(error: sqlx::Error) -> Failure {
    StoreError::Unavailable(Box::new(from_sqlx(error))).into()
}

/// Whether a batch that failed did so because the writer does not own what it is about. Its transaction is
/// still open, so that the answer is that of the moment.
async fn why(
    connection: &mut SqliteConnection,
    fences: Option<[String; 2]>,
    error: sqlx::Error,
) -> Failure {
    let Some([owner, fences]) = fences.filter(|_| matches!(error, sqlx::Error::Database(_))) else {
        return error.into();
    };
    let missing = sqlx::query_as::<_, (i64,)>(sql::CHECK_FENCES)
        .bind(owner)
        .bind(fences);
    let missing: Result<Vec<PartitionId>, _> = match missing.fetch_all(connection).await {
        Ok(missing) => missing.into_iter().map(|(id,)| partition(id)).collect(),
        Err(error) => Err(error),
    };
    match missing {
        Ok(missing) if !missing.is_empty() => Failure::Fenced(missing),
        _ => error.into(),
    }
}

/// Bodies of executions that were granted a slot, as far as they have [`MAX_BODIES_BYTES`].
#[derive(Default)]
struct Bodies {
    bodies: Vec<GrantedBody>,
    bytes: usize,
    /// How many there were.
    rows: usize,
}

impl Bodies {
    /// One that cannot be read is left out: what the batch says is written all the same, and whoever misses a
    /// body loads it and is told why it cannot be.
    fn add(&mut self, row: &SqliteRow) {
        self.rows += 1;
        if self.bytes > MAX_BODIES_BYTES {
            return;
        }
        let Ok(body) = body(row) else {
            return;
        };
        self.bytes += body.parameters.get().len();
        if self.bytes <= MAX_BODIES_BYTES {
            self.bodies.push(body);
        }
    }
}
