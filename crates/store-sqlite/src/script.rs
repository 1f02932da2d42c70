//! Several statements in one command to the thread of a connection.

use futures_util::TryStreamExt as _;
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Either, Executor as _};

/// Statements that run one after another, and the values that they take. A command wakes the thread of
/// the connection and is woken by it, which takes longer than a statement over a few rows does.
#[derive(Debug, Default)]
pub(crate) struct Script {
    text: String,
    values: Vec<String>,
    statements: usize,
}

/// A statement of a script, counted from 0.
pub(crate) type Place = usize;

impl Script {
    /// Adds a statement whose parameters `?1`, `?2`, … are these values; says which one it is.
    pub(crate) fn add<const N: usize>(&mut self, statement: &str, values: [String; N]) -> Place {
        // Numbers count from 1 through the whole script. `$7` is a parameter by the name of 7, and a
        // statement has no others; `?7` would make it have seven.
        let mut rest = statement;
        while let Some(at) = rest.find('?') {
            let (before, after) = (&rest[..at], &rest[at + 1..]);
            let digits = after.bytes().take_while(u8::is_ascii_digit).count();
            self.text.push_str(before);
            match after[..digits].parse::<usize>() {
                Ok(number) => {
                    let number = self.values.len() + number;
                    self.text.push_str(&format!("${number}"));
                }
                Err(_) => self.text.push_str(&rest[at..at + 1 + digits]),
            }
            rest = &after[digits..];
        }
        self.text.push_str(rest);
        // On a line of its own, because the statement may end with a comment.
        self.text.push_str("\n;\n");
        self.values.extend(values);
        self.statements += 1;
        self.statements - 1
    }

    /// Runs the statements up to the first that fails. Hands each row to `row` together with its
    /// statement, and gives back how many rows each statement changed; for one that cannot change any,
    /// the number means nothing.
    ///
    /// # Errors
    /// Those of the statements and of `row`. A transaction that was begun may be open then.
    pub(crate) async fn run(
        self,
        connection: &mut SqliteConnection,
        mut row: impl FnMut(Place, SqliteRow) -> Result<(), sqlx::Error> + Send,
    ) -> Result<Vec<u64>, sqlx::Error> {
        // The text is put together from the statements in `sql/` alone.
        let mut query = sqlx::query(AssertSqlSafe(self.text));
        for value in self.values {
            query = query.bind(value);
        }
        let mut changed = Vec::with_capacity(self.statements);
        let mut results = connection.fetch_many(query);
        while let Some(result) = results.try_next().await? {
            match result {
                Either::Left(done) => changed.push(done.rows_affected()),
                Either::Right(found) => row(changed.len(), found)?,
            }
        }
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, Row as _};

    use super::*;

    fn texts<const N: usize>(values: [&str; N]) -> [String; N] {
        values.map(str::to_owned)
    }

    #[tokio::test]
    async fn each_statement_has_its_own_values_rows_and_changes() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        for _ in 0..2 {
            let mut script = Script::default();
            script.add("CREATE TEMP TABLE kept (a, b, c) -- ?9 is no value", []);
            let insert = "INSERT INTO kept SELECT ?2, ?1, ?2 FROM (VALUES (1), (2))";
            let first = script.add(insert, texts(["x", "y"]));
            let second = script.add(
                "SELECT a, b, '?' AS mark FROM kept WHERE a = ?1",
                texts(["y"]),
            );
            let third = script.add(
                "UPDATE kept SET c = ?3, b = ?2 WHERE b = ?1",
                texts(["x", "z", "w"]),
            );
            let fourth = script.add("SELECT c, b, 'c' FROM kept LIMIT ?1", texts(["1"]));
            let fifth = script.add("DROP TABLE kept", []);
            let mut rows = Vec::new();
            let changed = script.run(&mut connection, |place, row| {
                rows.push((place, row.get::<String, _>(0), row.get::<String, _>(1)));
                Ok(())
            });
            let changed = changed.await.unwrap();
            let seen = |place, a: &str, b: &str| (place, a.to_owned(), b.to_owned());
            assert_eq!(
                rows,
                [
                    seen(second, "y", "x"),
                    seen(second, "y", "x"),
                    seen(fourth, "w", "z")
                ]
            );
            assert_eq!((changed[first], changed[third]), (2, 2));
            assert_eq!(changed.len(), fifth + 1);
        }
    }

    #[tokio::test]
    async fn nothing_runs_after_what_fails() {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let mut script = Script::default();
        script.add("CREATE TEMP TABLE kept (a CHECK (a <> 'bad'))", []);
        script.add("INSERT INTO kept VALUES (?1)", texts(["good"]));
        script.add("INSERT INTO kept VALUES (?1)", texts(["bad"]));
        script.add("INSERT INTO kept VALUES (?1)", texts(["after"]));
        let failed = script.run(&mut connection, |_, _| Ok(())).await;
        assert!(
            matches!(failed, Err(sqlx::Error::Database(_))),
            "{failed:?}"
        );
        let kept: Vec<String> = sqlx::query_scalar("SELECT a FROM kept")
            .fetch_all(&mut connection)
            .await
            .unwrap();
        assert_eq!(kept, ["good"]);
    }
}
