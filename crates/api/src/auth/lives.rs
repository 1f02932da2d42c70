//! How many lives of workers a key begins. Each of them is read by every executor, again and again, until a while
//! after it has ended: one key must not begin so many that executors do nothing else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use attune_core::WorkerId;
use attune_identity::{Pace, Rate};
use tokio::sync::OwnedSemaphorePermit;

use super::known::MAX_LISTENERS_OF_KEY;
use super::{Caller, rate_limited};
use crate::error::ApiError;

/// How many may begin at once: a whole fleet does when it or this server was started again.
const FLEET: u32 = 1_000;
/// After how many seconds another one may: what has ended is in the store for a day.
const EACH: u32 = 10;
const LIVES: Rate = Rate {
    per_second: 1,
    burst: FLEET * EACH,
};
/// A life that has said nothing for so long counts once more when it comes back.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// The lives that were begun with one key at this server.
#[derive(Debug, Default)]
pub(crate) struct Lives {
    pace: Pace,
    /// When each was heard last, counted from where the paces begin.
    heard: Mutex<HashMap<WorkerId, Duration>>,
}

impl Lives {
    /// A life is there, perhaps for the first time.
    ///
    /// # Errors
    /// When it is the first time and too many have begun lately: after how long another one may.
    pub(crate) fn hear(&self, worker: WorkerId, now: Duration) -> Result<(), Duration> {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = heard.get_mut(&worker) {
            *at = now;
            return Ok(());
        }
        self.pace.take(LIVES, EACH, now)?;
        if heard.len() > FLEET as usize {
            heard.retain(|_, at| now.saturating_sub(*at) < FORGOTTEN);
        }
        heard.insert(worker, now);
        Ok(())
    }
}

impl Caller {
    /// A life of a worker begins with this key, or goes on.
    ///
    /// # Errors
    /// 429 when too many have begun lately.
    pub(crate) fn hear_life(&self, worker: WorkerId) -> Result<(), ApiError> {
        let Some(known) = &self.known else {
            return Ok(());
        };
        let heard = known.paces.lives.hear(worker, self.gate.since());
        heard.map_err(|wait| {
            let words = format!(
                "{FLEET} lives of workers have begun with the key of {} at this server, and another one may every \
                 {EACH} seconds; a worker keeps the id of its life as long as its process lives",
                self.principal.name()
            );
            rate_limited(words, wait)
        })
    }

    /// A place among those who listen with this key.
    ///
    /// # Errors
    /// 429 when there is none.
    pub(crate) fn listens(&self) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        let Some(known) = &self.known else {
            return Ok(None);
        };
        let place = Arc::clone(&known.listeners).try_acquire_owned();
        place.map(Some).map_err(|_| {
            let words = format!(
                "{MAX_LISTENERS_OF_KEY} listen to events already with the key of {}, as many as may",
                self.principal.name()
            );
            rate_limited(words, Duration::from_secs(1))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_begins_at_once_and_then_one_after_the_other() {
        let lives = Lives::default();
        let second = |n: u64| Duration::from_secs(n);
        let fleet: Vec<WorkerId> = (0..FLEET).map(|_| WorkerId::fresh()).collect();
        for worker in &fleet {
            lives.hear(*worker, second(10)).unwrap();
        }
        let wait = lives.hear(WorkerId::fresh(), second(10)).unwrap_err();
        assert!(wait <= second(10), "{wait:?}");
        // Who has begun goes on.
        lives.hear(fleet[7], second(10)).unwrap();
        lives.hear(WorkerId::fresh(), second(20)).unwrap();
        assert!(lives.hear(WorkerId::fresh(), second(20)).is_err());
        // What is heard of no more takes no room.
        for n in 0..100 {
            lives.hear(WorkerId::fresh(), second(30 + 10 * n)).unwrap();
        }
        let kept = lives.heard.lock().unwrap().len();
        assert!(kept < 200, "{kept} are remembered");
    }
}
