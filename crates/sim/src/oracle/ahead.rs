//! Who is granted ahead of its slot begins behind those who were granted before it.

use attune_core::{Attempt, Promise};

use super::{Key, Oracle};
use crate::plan::Time;
use crate::shadow::Shadow;
use crate::store::Store;

impl Oracle {
    /// What was granted is stored: who of them was granted ahead stands behind those who had not begun.
    pub(super) fn note_behind(&mut self, shadow: &Shadow, key: Key) {
        if let Some(before) = shadow.behind.get(&key) {
            let before = before.iter().copied();
            let before = before.filter(|other| !self.started.contains(other));
            self.behind.insert(key, before.collect());
        }
    }

    /// Somebody begins: whom it stands behind has begun, or ended, or never will begin under that grant by an order.
    pub(super) fn judge_behind(&mut self, now: Time, store: &Store, key: Key) {
        let before = self.behind.remove(&key).unwrap_or_default();
        let passed = before.into_iter().find(|other| {
            let row = store.active.get(&other.0);
            let is_wanted =
                row.is_some_and(|row| !row.cancel_requested && row.kept_until.is_none());
            let until = (other.0, Attempt(i32::MAX));
            let has_begun = self.started.range(*other..=until).next().is_some();
            is_wanted && !has_begun && !self.asked_back.contains(other)
        });
        if let Some(passed) = passed {
            let words = format!("{key:?} begins before {passed:?}, behind which it was granted");
            self.say(now, Promise::I3, words);
        }
    }
}
