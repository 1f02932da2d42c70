//! Columns of a batch as array parameters, written straight into the message.

use attune_store::StoreError;
use attune_store::error::Source;
use sqlx::postgres::{PgArguments, PgBindIterExt as _, PgHasArrayType};
use sqlx::{Arguments as _, Encode, Postgres, Type};

/// Parameters under construction.
#[derive(Default)]
pub(crate) struct Binds {
    arguments: PgArguments,
    error: Option<Source>,
}

impl Binds {
    /// The next parameter.
    pub(crate) fn value<'q, T>(&mut self, value: T)
    where
        T: Encode<'q, Postgres> + Type<Postgres>,
    {
        if let Err(error) = self.arguments.add(value) {
            self.error.get_or_insert(error);
        }
    }

    /// The next parameter: an array of one value for each of `rows`.
    pub(crate) fn column<'q, R, T>(
        &mut self,
        rows: impl IntoIterator<Item = R>,
        value: impl FnMut(R) -> T,
    ) where
        T: Encode<'q, Postgres> + Type<Postgres> + PgHasArrayType,
    {
        self.value(rows.into_iter().map(value).bind_iter());
    }

    /// The parameters, to be sent.
    ///
    /// # Errors
    /// [`StoreError::Statement`] when one of them is too large for a message (2 GiB).
    pub(crate) fn finish(self) -> Result<PgArguments, StoreError> {
        match self.error {
            None => Ok(self.arguments),
            Some(error) => Err(StoreError::Statement(error)),
        }
    }
}
