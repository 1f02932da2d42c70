//! What a failure means for the caller.

use std::sync::Arc;

use attune_store::StoreError;
use sqlx::migrate::MigrateError;

/// A failure inside a call, before the caller's error is made of it.
#[derive(Debug)]
pub(crate) enum Failure {
    /// sqlx or the server said no.
    Database(sqlx::Error),
    /// The adapter itself decided.
    Store(StoreError),
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Names the server in front of what went wrong there.
#[derive(Debug, thiserror::Error)]
#[error("PostgreSQL at {address}")]
struct At {
    address: Arc<str>,
    source: sqlx::Error,
}

impl Failure {
    /// The caller's error. `address` says which server it was.
    pub(crate) fn at(self, address: &Arc<str>) -> StoreError {
        let error = match self {
            Self::Store(error) => return error,
            Self::Database(error) => error,
        };
        // A table, column, function or schema that should be there is not.
        if let Some("42P01" | "42703" | "42883" | "3F000") = code(&error).as_deref() {
            return StoreError::Schema(format!("{error}; run `attune migrate`"));
        }
        let transient = is_transient(&error);
        let source = Box::new(At {
            address: Arc::clone(address),
            source: error,
        });
        if transient {
            StoreError::Unavailable(source)
        } else {
            StoreError::Statement(source)
        }
    }
}

/// What a failed migration means.
pub(crate) fn of_migration(error: MigrateError) -> Failure {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            Failure::Database(error)
        }
        MigrateError::VersionMissing(version) => Failure::Store(StoreError::Schema(format!(
            "the database has migration {version}, which this program does not know; use a newer one"
        ))),
        other => Failure::Store(StoreError::Schema(other.to_string())),
    }
}

/// A row that this version of the program cannot read.
pub(crate) fn unreadable(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Store(StoreError::Schema(format!(
        "a stored {what} cannot be read: {error}"
    )))
}

fn code(error: &sqlx::Error) -> Option<String> {
    let code = error.as_database_error()?.code()?;
    Some(code.into_owned())
}

/// Whether the same call may succeed later.
fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => true,
        _ => code(error).is_some_and(|code| is_transient_code(&code)),
    }
}

/// The classes of SQLSTATE that pass by themselves: connections, resources, operators, the
/// system, and conflicts between transactions.
fn is_transient_code(code: &str) -> bool {
    ["08", "40", "53", "57", "58"].contains(&code.get(..2).unwrap_or_default())
        // lock_timeout; idle_in_transaction_session_timeout; a standby that is not promoted yet
        || ["55P03", "25P03", "25006"].contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_by_itself_is_transient() {
        for code in [
            "57014", "57P01", "57P03", "40P01", "40001", "53300", "08006", "55P03", "25006",
        ] {
            assert!(is_transient_code(code), "{code}");
        }
        for code in ["23505", "22021", "28P01", "3D000", "42601", ""] {
            assert!(!is_transient_code(code), "{code}");
        }
    }

    #[test]
    fn the_chain_names_the_server_once() {
        let address: Arc<str> = "db:5432".into();
        let error = Failure::from(sqlx::Error::PoolTimedOut).at(&address);
        assert!(error.is_transient());
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.to_string(), "PostgreSQL at db:5432");
        assert!(source.source().unwrap().to_string().contains("timed out"));
    }
}
