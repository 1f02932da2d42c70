//! How many executions a round may change, so that the store can write it in the time that a statement has.
//!
//! What an execution costs the store follows from the bytes that it carries, and the memory of an owner does
//! not have those. A thousand small ones take tens of milliseconds; four hundred with 900 KB of parameters
//! each took longer than a statement may, and the same round again can never be written. So a round that
//! was refused after so long is not written again where it is large: its partition is loaded again and decides
//! in small rounds, which grow for as long as they are written quickly. What ends because it has waited too long
//! begins with few: it may be all that waits.

use crate::queue::Millis;

/// A round that is refused after so long, in milliseconds, may have been too much: the time of a statement is
/// over, or nearly.
const TOO_LONG: Millis = 5_000;
/// A round may be followed by one of twice the size if it took no longer.
const QUICK: Millis = 2_000;
/// Likewise one in which many have waited too long; the next has half as many if it took twice as long.
const QUICK_TO_EXPIRE: Millis = 500;
/// A round of so many is never too large.
const LEAST: usize = 8;
/// How many may end in the first round because they have waited too long.
const FIRST_EXPIRIES: usize = 16;

/// What the next round may do.
#[derive(Debug)]
pub(super) struct Steps {
    /// How many executions it may change, where that is less than usual.
    items: Option<usize>,
    /// How many of them may end because they have waited too long.
    expiries: usize,
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            items: None,
            expiries: FIRST_EXPIRIES,
        }
    }
}

impl Steps {
    /// How many executions the next round may change, `most` usually.
    pub(super) fn items(&self, most: usize) -> usize {
        self.items.unwrap_or(most).min(most)
    }

    /// How many of them may end because they have waited too long.
    pub(super) fn expiries(&self, most: usize) -> usize {
        self.expiries.min(self.items(most))
    }

    /// A round was written in `took` milliseconds that has changed so many executions, and ended so many of them.
    pub(super) fn written(&mut self, took: Millis, (changed, ended): (usize, usize), most: usize) {
        if let Some(items) = self.items
            && took <= QUICK
            && 2 * changed >= items
        {
            self.items = Some(2 * items).filter(|items| *items < most);
        }
        if 2 * ended < self.expiries {
            return;
        }
        if took <= QUICK_TO_EXPIRE {
            self.expiries = (2 * self.expiries).min(most.max(LEAST));
        } else if took > 2 * QUICK_TO_EXPIRE && self.expiries > FIRST_EXPIRIES {
            self.expiries /= 2;
        }
    }

    /// Whether a round of so many executions may be too much for the store, which has refused it after `took`
    /// milliseconds; the next ones are small then.
    pub(super) fn is_too_much(&mut self, took: Millis, changed: usize) -> bool {
        let is_so = took >= TOO_LONG && changed > LEAST;
        if is_so {
            (self.items, self.expiries) = (Some(LEAST), LEAST);
        }
        is_so
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1_000;

    #[test]
    fn what_is_refused_at_once_changes_nothing_and_what_takes_too_long_comes_in_small_rounds() {
        let mut steps = Steps::default();
        assert!(!steps.is_too_much(100, 999));
        assert!(!steps.is_too_much(10_000, LEAST));
        assert_eq!(steps.items(MOST), MOST);
        assert!(steps.is_too_much(10_000, 399));
        assert_eq!((steps.items(MOST), steps.expiries(MOST)), (LEAST, LEAST));
        steps.written(3_000, (8, 8), MOST);
        assert_eq!(steps.items(MOST), LEAST, "no larger while that takes long");
        for items in [16, 32, 64, 128, 256, 512, MOST] {
            let changed = steps.items(MOST);
            steps.written(100, (changed, changed), MOST);
            assert_eq!((steps.items(MOST), steps.expiries(MOST)), (items, items));
        }
    }

    #[test]
    fn who_has_waited_too_long_ends_with_few_at_first() {
        let mut steps = Steps::default();
        assert_eq!(steps.expiries(MOST), FIRST_EXPIRIES);
        steps.written(10, (500, 3), MOST);
        assert_eq!(steps.expiries(MOST), FIRST_EXPIRIES, "few have ended");
        steps.written(10, (16, 16), MOST);
        assert_eq!(steps.expiries(MOST), 32);
        steps.written(700, (32, 32), MOST);
        assert_eq!(steps.expiries(MOST), 32);
        steps.written(1_200, (32, 32), MOST);
        assert_eq!(steps.expiries(MOST), FIRST_EXPIRIES);
        assert_eq!(steps.expiries(4), 4, "no more than is usual");
    }
}
