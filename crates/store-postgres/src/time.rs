//! Times on their way out of the database, and as places in a list.
//!
//! PostgreSQL has times that this program has not: `infinity`, and years that the driver panics on.
//! The program writes none of them, but somebody at a prompt can, and one row would then hide all that
//! are read with it. So every time is read as what both sides can represent.

use chrono::{DateTime, Utc};
use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgRow, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Row as _, Type};

use crate::text::{self, FIRST, LAST};

/// From 1970, where the program begins to count, to 2000, where the server does, in microseconds.
const SERVER_BEGINS: i64 = 946_684_800_000_000;

/// A time as it is read: within the years 1 to 9999, whatever is stored.
pub(crate) struct Time(pub(crate) DateTime<Utc>);

impl Time {
    /// Microseconds since 2000, where both ends of the numbers stand for the infinite.
    fn of_server(micros: i64) -> Self {
        let at = DateTime::from_timestamp_micros(micros.saturating_add(SERVER_BEGINS));
        let end = if micros < 0 { FIRST } else { LAST };
        Self(at.map_or(end, text::time))
    }
}

impl Type<Postgres> for Time {
    fn type_info() -> PgTypeInfo {
        <DateTime<Utc> as Type<Postgres>>::type_info()
    }
}

impl<'r> Decode<'r, Postgres> for Time {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        match value.format() {
            PgValueFormat::Binary => <i64 as Decode<Postgres>>::decode(value).map(Self::of_server),
            // Only statements without parameters that are not prepared are answered in text.
            PgValueFormat::Text => {
                <DateTime<Utc> as Decode<Postgres>>::decode(value).map(|at| Self(text::time(at)))
            }
        }
    }
}

/// A time of a row.
pub(crate) fn time(row: &PgRow, column: &str) -> Result<DateTime<Utc>, sqlx::Error> {
    row.try_get(column).map(|Time(at)| at)
}

/// A time that a row may not have.
pub(crate) fn optional(row: &PgRow, column: &str) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    let stored: Option<Time> = row.try_get(column)?;
    Ok(stored.map(|Time(at)| at))
}

/// As [`optional`], and nothing for a time that no clock has shown: it says when something was, and
/// whoever measures from it would be further off than with nothing.
pub(crate) fn measured(row: &PgRow, column: &str) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    let stored = optional(row, column)?;
    Ok(stored.filter(|at| *at > FIRST && *at < LAST))
}

/// A time after or before which a list goes on. It was read as a [`Time`], so at its ends it may stand
/// for others beyond it, which the server does not take for the same: those are passed over. Met again,
/// they would be met for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    micros: i64,
}

impl Place {
    /// In a list whose times rise.
    pub(crate) fn rising(at: DateTime<Utc>) -> Self {
        match at >= LAST {
            true => Self { micros: i64::MAX },
            false => Self::of(at),
        }
    }

    /// In a list whose times fall.
    pub(crate) fn falling(at: DateTime<Utc>) -> Self {
        match at <= FIRST {
            true => Self { micros: i64::MIN },
            false => Self::of(at),
        }
    }

    fn of(at: DateTime<Utc>) -> Self {
        Self {
            micros: text::time(at).timestamp_micros() - SERVER_BEGINS,
        }
    }
}

impl Type<Postgres> for Place {
    fn type_info() -> PgTypeInfo {
        Time::type_info()
    }
}

impl Encode<'_, Postgres> for Place {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        Encode::<Postgres>::encode(self.micros, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_a_time() {
        let read = |micros| Time::of_server(micros).0;
        assert_eq!(read(0).to_rfc3339(), "2000-01-01T00:00:00+00:00");
        assert_eq!(read(-1).to_rfc3339(), "1999-12-31T23:59:59.999999+00:00");
        // What the driver can read is the same.
        let usual: DateTime<Utc> = "2030-01-02T03:04:05.678901Z".parse().unwrap();
        assert_eq!(read(usual.timestamp_micros() - SERVER_BEGINS), usual);
        // The infinite, and the server's own last and first day.
        for (late, early) in [
            (i64::MAX, i64::MIN),
            (i64::MAX - 1, i64::MIN + 1),
            (9_223_371_331_199_999_999, -211_813_488_000_000_000),
        ] {
            assert_eq!((read(late), read(early)), (LAST, FIRST));
        }
    }

    #[test]
    fn what_stands_for_others_is_passed() {
        let micros = |place: Place| place.micros;
        let usual: DateTime<Utc> = "2000-01-01T00:00:01Z".parse().unwrap();
        assert_eq!(micros(Place::rising(usual)), 1_000_000);
        assert_eq!(Place::rising(usual), Place::falling(usual));
        assert_eq!(micros(Place::rising(LAST)), i64::MAX);
        assert_eq!(micros(Place::falling(FIRST)), i64::MIN);
        assert_eq!(Place::rising(FIRST), Place::of(FIRST));
        assert_eq!(Place::falling(DateTime::<Utc>::MAX_UTC), Place::of(LAST));
    }
}
