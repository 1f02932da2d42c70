//! What a failure means for the caller.

use std::sync::Arc;

use attune_store::StoreError;
use attune_store::error::Source;
use sqlx::migrate::MigrateError;
use sqlx::postgres::PgDatabaseError;

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
enum At {
    /// What the server itself says, without the driver's frame around it, which says it twice.
    #[error("PostgreSQL at {address}: {said}")]
    Server {
        address: Arc<str>,
        said: String,
        /// A lock was not free in time.
        locked: bool,
    },
    #[error("PostgreSQL at {address}")]
    Driver {
        address: Arc<str>,
        source: sqlx::Error,
    },
}

impl Failure {
    /// Whether the session may only read: the database takes no writes, or is a standby.
    pub(crate) fn is_read_only(&self) -> bool {
        match self {
            Self::Database(error) => code(error).as_deref() == Some("25006"),
            Self::Store(_) => false,
        }
    }

    /// Whether a prepared statement does not fit the tables any more, or is gone.
    pub(crate) fn is_outdated_plan(&self) -> bool {
        match self {
            Self::Database(error) => match code(error).as_deref() {
                Some("26000") => true,
                // The same code means anything that the server cannot do.
                Some("0A000") => routine(error) == Some("RevalidateCachedQuery"),
                _ => false,
            },
            Self::Store(_) => false,
        }
    }

    /// Whether something that may be there once is there already. Nothing was written.
    pub(crate) fn is_duplicate(&self) -> bool {
        match self {
            Self::Database(error) => code(error).as_deref() == Some("23505"),
            Self::Store(_) => false,
        }
    }

    /// Whether a lock was not free in time. Nothing was written.
    pub(crate) fn is_locked(&self) -> bool {
        match self {
            Self::Database(error) => code(error).as_deref() == Some("55P03"),
            Self::Store(_) => false,
        }
    }

    /// Names the execution that could not be read.
    pub(crate) fn of_execution(self, id: i64) -> Self {
        let words = match self {
            Self::Store(StoreError::Schema(words)) => words,
            Self::Database(error @ (sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. })) => {
                format!("a stored row cannot be read: {error}")
            }
            other => return other,
        };
        Self::Store(StoreError::Schema(format!("execution {id}: {words}")))
    }

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
        let kind = kind(&error);
        let address = Arc::clone(address);
        kind(Box::new(match error.as_database_error() {
            Some(said) => At::Server {
                address,
                said: said.message().to_owned(),
                locked: said.code().as_deref() == Some("55P03"),
            },
            None => At::Driver {
                address,
                source: error,
            },
        }))
    }
}

/// Whether the server has refused a statement because the login lacks a right.
#[must_use]
pub fn is_forbidden(error: &StoreError) -> bool {
    matches!(error, StoreError::Forbidden(_))
}

/// What a failure means to a program that has not connected yet. A password or a name that is
/// wrong from the beginning is a wrong setting: waiting would only hide it.
pub(crate) fn of_connecting(error: sqlx::Error, address: &Arc<str>) -> StoreError {
    let is_setting = code(&error).is_some_and(|code| code == "3D000" || code.starts_with("28"));
    match Failure::from(error).at(address) {
        StoreError::Refused(source) if is_setting => StoreError::Statement(source),
        other => other,
    }
}

/// Whether a lock was not free in time. Nothing was written.
pub(crate) fn is_locked(error: &StoreError) -> bool {
    let StoreError::Refused(source) = error else {
        return false;
    };
    matches!(
        source.downcast_ref::<At>(),
        Some(At::Server { locked: true, .. })
    )
}

/// The function of the server that says it.
fn routine(error: &sqlx::Error) -> Option<&str> {
    let said = error.as_database_error()?;
    said.try_downcast_ref::<PgDatabaseError>()?.routine()
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

/// What is made of the source of an error.
type Kind = fn(Source) -> StoreError;

/// What a failure means.
fn kind(error: &sqlx::Error) -> Kind {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => StoreError::Unavailable,
        _ => code(error).map_or(StoreError::Statement as Kind, |code| kind_of_code(&code)),
    }
}

/// What a SQLSTATE means. Those after which the session is gone say nothing about what the
/// statement has done; after the others it has done nothing.
fn kind_of_code(code: &str) -> Kind {
    match code {
        // Too many connections; the time for an idle transaction; an outcome that the server
        // itself does not know.
        "53300" | "25P03" | "40003" => StoreError::Unavailable,
        // statement_timeout; lock_timeout; a standby that is not promoted yet; a database that
        // takes no connections, or is not there.
        "57014" | "55P03" | "25006" | "55000" | "3D000" => StoreError::Refused,
        "42501" => StoreError::Forbidden,
        _ => match code.get(..2).unwrap_or_default() {
            // Connections; operators, who end sessions and stop servers.
            "08" | "57" => StoreError::Unavailable,
            // Conflicts between transactions; resources, such as a full disk; the system; users
            // and passwords, which are changed under running processes.
            "40" | "53" | "58" | "28" => StoreError::Refused,
            _ => StoreError::Statement,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    #[test]
    fn a_refusal_is_told_from_silence_and_from_a_bad_statement() {
        let kind = |code: &str| kind_of_code(code)("reason".into());
        for code in ["57P01", "57P03", "53300", "08006", "25P03", "40003"] {
            let error = kind(code);
            assert!(matches!(error, StoreError::Unavailable(_)), "{code}");
            assert!(error.is_transient() && !error.wrote_nothing(), "{code}");
        }
        for code in [
            "53100", "53200", "57014", "40P01", "40001", "55P03", "25006", "58030", "55000",
            "3D000", "28P01", "28000",
        ] {
            let error = kind(code);
            assert!(matches!(error, StoreError::Refused(_)), "{code}");
            assert!(error.is_transient() && error.wrote_nothing(), "{code}");
        }
        let error = kind("42501");
        assert!(matches!(error, StoreError::Forbidden(_)));
        assert!(!error.is_transient() && error.wrote_nothing());
        for code in ["23505", "22021", "42601", "42703", ""] {
            let error = kind(code);
            assert!(matches!(error, StoreError::Statement(_)), "{code}");
            assert!(!error.is_transient() && error.wrote_nothing(), "{code}");
        }
    }

    /// What a server says that is there, with nothing but a code.
    #[derive(Debug, thiserror::Error)]
    #[error("no such thing")]
    struct Said(&'static str);

    impl sqlx::error::DatabaseError for Said {
        fn message(&self) -> &str {
            "no such thing"
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Source {
            self
        }

        fn kind(&self) -> sqlx::error::ErrorKind {
            sqlx::error::ErrorKind::Other
        }
    }

    /// Older or newer than the program: no outage, which would end by itself, and what to do is told.
    #[test]
    fn a_schema_that_does_not_fit_is_told_as_such() {
        let address: Arc<str> = "db:5432".into();
        let at = |code| Failure::from(sqlx::Error::from(Said(code))).at(&address);
        for code in ["42P01", "42703", "42883", "3F000"] {
            let error = at(code);
            assert!(matches!(error, StoreError::Schema(_)), "{code}");
            assert!(!error.is_transient() && error.wrote_nothing(), "{code}");
            let words = error.to_string();
            assert!(words.ends_with("run `attune migrate`"), "{words}");
        }
        assert!(matches!(at("53100"), StoreError::Refused(_)));
        assert!(matches!(at("57P01"), StoreError::Unavailable(_)));
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
