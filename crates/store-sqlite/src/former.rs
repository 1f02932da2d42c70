//! What earlier processes have left behind in the file.

use sqlx::sqlite::SqliteConnection;

use crate::error::Failure;
use crate::sql;

/// Ends every lease in the file. To be called by the holder of the file's lock before anything
/// else: nobody else has the file, so whoever took a lease is gone, however it ended.
pub(crate) async fn end_leases(connection: &mut SqliteConnection) -> Result<(), Failure> {
    for statement in [
        sql::END_FORMER_PARTITIONS,
        sql::END_FORMER_WORKERS,
        sql::FORGET_FORMER_EXECUTORS,
    ] {
        match sqlx::query(statement).execute(&mut *connection).await {
            Ok(_) => {}
            // A new file, or one of an older program, whose leases end by themselves.
            Err(sqlx::Error::Database(error)) if error.message().starts_with("no such") => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
