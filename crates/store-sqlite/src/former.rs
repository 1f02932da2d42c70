//! What earlier processes have left behind in the file.

use attune_core::RequestId;
use attune_store::What;
use attune_store::{Actor, FENCE_ATTEMPTS, FENCE_JUMP, MAX_UNBEGUN, NewAudit};
use serde_json::json;
use sqlx::sqlite::SqliteConnection;

use crate::error::Failure;
use crate::{audit, sql};

/// Ends the leases of partitions in the file. To be called by the holder of the file's lock before anything
/// else: nobody else has the file, so whoever owned a partition is gone, however it ended. Not so workers: those
/// that come over HTTP are processes of their own and go on with what they run. Their leases end by themselves, as
/// does that of the bundled worker where nobody can say that nothing of it is left.
pub(crate) async fn end_leases(connection: &mut SqliteConnection) -> Result<(), Failure> {
    end(
        connection,
        &[sql::END_FORMER_PARTITIONS, sql::FORGET_FORMER_EXECUTORS],
    )
    .await
}

async fn end(
    connection: &mut SqliteConnection,
    statements: &[&'static str],
) -> Result<(), Failure> {
    for statement in statements.iter().copied() {
        match sqlx::query(statement).execute(&mut *connection).await {
            Ok(_) => {}
            // A new file, or one of an older program, whose leases end by themselves.
            Err(sqlx::Error::Database(error)) if error.message().starts_with("no such") => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Ends every lease, makes the epochs and the attempts of what waits jump, with an entry in the audit log.
pub(crate) async fn fence(
    connection: &mut SqliteConnection,
    who: Actor,
    again: u16,
) -> Result<(), Failure> {
    let times = i64::from(again) + 1;
    end_leases(connection).await?;
    end(connection, &[sql::END_FORMER_WORKERS]).await?;
    sqlx::query(sql::JUMP_EPOCHS)
        .bind(FENCE_JUMP * times)
        .execute(&mut *connection)
        .await?;
    sqlx::query(sql::RAISE_ATTEMPTS)
        .bind(FENCE_ATTEMPTS * times)
        .bind(MAX_UNBEGUN)
        .execute(&mut *connection)
        .await?;
    let entry = NewAudit {
        request_id: RequestId::fresh(),
        who,
        what: What::RestoreFence,
        target: "cluster".to_owned(),
        reason: None,
        before: None,
        after: Some(json!({"epochs": FENCE_JUMP * times, "attempts": FENCE_ATTEMPTS * times})),
    };
    audit::note(connection, &[entry]).await?;
    Ok(())
}
