//! Which messages wait for a newer program.

use std::collections::HashMap;
use std::time::Duration;

use uuid::Uuid;

/// How many may wait: each passes the window once in a round of the topic, and what stands behind them waits as
/// long. Two seconds, with a window of 32.
pub(super) const MOST: usize = 256;
/// Not seen for so long one has been taken by a program that can read it.
const GONE_AFTER: Duration = Duration::from_secs(180);

/// Those that were seen lately.
#[derive(Default)]
pub(super) struct Waits {
    seen: HashMap<Uuid, Duration>,
}

impl Waits {
    /// Whether a message may wait, which it does from now on: because it does already, or few others do.
    pub(super) fn may_wait(&mut self, message: Uuid, now: Duration) -> bool {
        if self.seen.len() >= MOST && !self.seen.contains_key(&message) {
            self.seen.retain(|_, seen| now < *seen + GONE_AFTER);
        }
        let may_wait = self.seen.len() < MOST || self.seen.contains_key(&message);
        if may_wait {
            self.seen.insert(message, now);
        }
        may_wait
    }
}
