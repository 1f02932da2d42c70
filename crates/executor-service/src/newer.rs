//! Messages that only a newer program can read: they wait, and whoever runs this one must know.

use std::sync::{Mutex, PoisonError};

use attune_executor::owner::Trouble;
use attune_executor::queue::Millis;

/// One that waits comes again within a minute, and behind everything else that waits by then: when none
/// has come for so long, none waits any more, in milliseconds.
const QUIET: Millis = 600_000;

/// When the first and the last of them came, by the clock of this process.
#[derive(Debug, Default)]
pub(crate) struct Newer(Mutex<Option<(Millis, Millis)>>);

impl Newer {
    /// One came.
    pub(crate) fn came(&self, now: Millis) {
        let since = self.since(now).unwrap_or(now);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((since, now));
    }

    /// What is to be told of them, while any wait.
    pub(crate) fn trouble(&self, now: Millis) -> Option<Trouble> {
        let since = self.since(now)?;
        Some(Trouble {
            for_ms: now - since,
            words: "messages of a newer version wait, and hold up what comes behind many of them: \
                    update this executor"
                .to_owned(),
        })
    }

    fn since(&self, now: Millis) -> Option<Millis> {
        let came = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        came.filter(|(_, last)| now - last < QUIET)
            .map(|(since, _)| since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_told_as_long_as_any_comes() {
        let newer = Newer::default();
        assert_eq!(newer.trouble(5_000), None);
        newer.came(5_000);
        newer.came(60_000);
        assert_eq!(newer.trouble(659_999).unwrap().for_ms, 654_999);
        assert_eq!(newer.trouble(660_000), None, "they have gone");
        newer.came(700_000);
        assert_eq!(newer.trouble(700_500).unwrap().for_ms, 500);
    }
}
