//! Who asks for executions, where it is counted how many of theirs wait.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Reject, RejectCode};

/// Whoever asks by a key that may have so many waiting only: a number made from the name of the key, which is
/// stored with each of its executions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Asker(pub i64);

/// The name space of these numbers.
const ASKERS: Uuid = Uuid::from_u128(0x5b1f_02a6_7c39_4d11_9e84_30d7_65c1_af92);

impl Asker {
    /// The owner of a key of this name.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let (number, _) = Uuid::new_v5(&ASKERS, name.as_bytes()).as_u64_pair();
        Self(number.cast_signed())
    }
}

/// How many executions of somebody may wait at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitBound {
    /// Whose.
    pub asker: Asker,
    /// How many.
    pub max_waiting: u32,
}

impl WaitBound {
    /// Whether one more may wait beside so many.
    ///
    /// # Errors
    /// `USER_LIMIT_REACHED` when as many wait as may.
    pub fn admits(self, waiting: u32) -> Result<(), Reject> {
        if waiting < self.max_waiting {
            return Ok(());
        }
        let words = format!(
            "{waiting} executions that were asked for with this key wait, and `max_waiting` of the key allows {}: \
             ask again when some of them have started",
            self.max_waiting
        );
        Err(Reject {
            retry_after_seconds: Some(1),
            ..Reject::new(RejectCode::UserLimitReached, words)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_name_stays_what_it_was() {
        // It is stored: another one would forget whose executions wait.
        assert_eq!(Asker::of("ci"), Asker(3_752_818_862_618_072_300));
        assert_ne!(Asker::of("ci"), Asker::of("ci2"));
    }

    #[test]
    fn as_many_wait_as_may() {
        let bound = WaitBound {
            asker: Asker(1),
            max_waiting: 2,
        };
        assert!(bound.admits(1).is_ok());
        let refused = bound.admits(2).unwrap_err();
        assert_eq!(refused.code, RejectCode::UserLimitReached);
        assert!(
            refused
                .message
                .contains("`max_waiting` of the key allows 2"),
            "{refused}"
        );
    }
}
