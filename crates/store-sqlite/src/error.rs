//! From SQLite's errors to those of the port.

use attune_core::PartitionId;
use attune_store::error::Source;
use attune_store::{CommitError, StoreError};
use sqlx::migrate::MigrateError;

/// What goes wrong inside the adapter, before it is told to the caller.
#[derive(Debug)]
pub(crate) enum Failure {
    /// SQLite or sqlx failed.
    Sql(sqlx::Error),
    /// The caller asked for what cannot be.
    Store(StoreError),
    /// The writer does not own these partitions any more.
    Fenced(Vec<PartitionId>),
}

impl Failure {
    /// Whether the connection that it came from is of no more use.
    pub(crate) fn breaks_connection(&self) -> bool {
        matches!(
            self,
            Self::Sql(sqlx::Error::WorkerCrashed | sqlx::Error::Io(_) | sqlx::Error::Protocol(_))
        )
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Sql(error) => from_sqlx(error),
            Failure::Store(error) => error,
            Failure::Fenced(partitions) => Self::Conflict(format!(
                "{} partition(s) have another owner",
                partitions.len()
            )),
        }
    }
}

impl From<Failure> for CommitError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Fenced(partitions) => Self::Fenced(partitions),
            other => Self::Store(other.into()),
        }
    }
}

/// A value in a row is not what the adapter writes there.
pub(crate) fn unreadable(what: impl std::fmt::Display) -> sqlx::Error {
    sqlx::Error::Decode(format!("a row cannot be read: {what}").into())
}

pub(crate) fn closed() -> StoreError {
    StoreError::Unavailable("the store has been closed".into())
}

pub(crate) fn from_sqlx(error: sqlx::Error) -> StoreError {
    let kind = match &error {
        sqlx::Error::Database(refused) => refused
            .code()
            .and_then(|code| code.parse().ok())
            .map_or(StoreError::Statement as Kind, kind),
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => StoreError::Unavailable,
        _ => StoreError::Statement,
    };
    kind(Box::new(error))
}

/// What is made of the source of an error.
type Kind = fn(Source) -> StoreError;

/// What SQLite's extended result code stands for. The disk or the file cannot be reached (IOERR,
/// CANTOPEN): unavailable. Another program holds a lock (BUSY, LOCKED, PROTOCOL), memory or disk
/// are full (NOMEM, FULL), or the statement was interrupted: refused for now.
fn kind(extended_code: i32) -> Kind {
    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;
    const NOMEM: i32 = 7;
    const INTERRUPT: i32 = 9;
    const IOERR: i32 = 10;
    const FULL: i32 = 13;
    const CANTOPEN: i32 = 14;
    const PROTOCOL: i32 = 15;
    match extended_code & 0xff {
        IOERR | CANTOPEN => StoreError::Unavailable,
        BUSY | LOCKED | NOMEM | INTERRUPT | FULL | PROTOCOL => StoreError::Refused,
        _ => StoreError::Statement,
    }
}

pub(crate) fn from_migrate(error: MigrateError) -> StoreError {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => from_sqlx(error),
        MigrateError::VersionMissing(version) => newer(version),
        other => StoreError::Schema(other.to_string()),
    }
}

pub(crate) fn newer(version: i64) -> StoreError {
    StoreError::Schema(format!(
        "it has version {version}, which this program does not know; run a newer program"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_told_from_what_does_not() {
        let kind = |code| kind(code)("reason".into());
        // BUSY, BUSY_SNAPSHOT, FULL
        for code in [5, 517, 13] {
            assert!(matches!(kind(code), StoreError::Refused(_)), "{code}");
        }
        // IOERR_WRITE, CANTOPEN
        for code in [778, 14] {
            assert!(matches!(kind(code), StoreError::Unavailable(_)), "{code}");
        }
        // ERROR, CORRUPT, CONSTRAINT_CHECK, NOTADB, READONLY
        for code in [1, 11, 275, 26, 8] {
            assert!(matches!(kind(code), StoreError::Statement(_)), "{code}");
        }
        assert!(from_sqlx(sqlx::Error::PoolTimedOut).is_transient());
        assert!(!from_sqlx(sqlx::Error::RowNotFound).is_transient());
    }
}
