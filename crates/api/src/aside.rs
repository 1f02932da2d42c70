//! Work whose length depends on what somebody wrote, beside the threads that serve requests.

use std::sync::Arc;
use std::thread;

use tokio::sync::{Mutex, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use crate::budget::Budget;
use crate::error::ApiError;

/// How many pieces of such work run at once.
const MAX_THREADS: usize = 4;
/// How many of those that match patterns, which can take longest: they never keep others waiting.
const MATCHING_THREADS: usize = 2;
/// Schemas that refer to themselves are checked by functions that call themselves.
const STACK_BYTES: usize = 16 * 1024 * 1024;

/// Runs such work in few threads of its own. Nothing can stop a thread, so whoever waits too long
/// is answered while it goes on to its end; threads of the runtime would delay the end of the
/// process by that.
pub(crate) struct Aside {
    threads: Arc<Semaphore>,
    matching: Arc<Semaphore>,
    /// The texts of what is parsed to trees, here and elsewhere.
    pub(crate) parsed: Budget,
}

/// Work of one kind, of which one piece is done at a time: a schema that takes long must not
/// take the threads from all others.
pub(crate) type Line = Arc<Mutex<()>>;

/// What kind of work it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It matches patterns, or compiles them.
    Patterns,
    /// Any other.
    Plain,
}

impl Kind {
    /// Of work with a schema of so many patterns.
    pub(crate) fn of(patterns: usize) -> Self {
        match patterns {
            0 => Self::Plain,
            _ => Self::Patterns,
        }
    }
}

impl Aside {
    pub(crate) fn new() -> Self {
        Self {
            threads: Arc::new(Semaphore::new(MAX_THREADS)),
            matching: Arc::new(Semaphore::new(MATCHING_THREADS)),
            parsed: Budget::of_parsed(),
        }
    }

    /// Does `work`, which parses so many bytes of text, and waits for its end until `deadline`.
    ///
    /// # Errors
    /// 503 `OVERLOADED` when it has not ended by then, with `problem` as the words; 500 when it
    /// has panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        (line, kind): (&Line, Kind),
        text_bytes: usize,
        deadline: Instant,
        problem: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let too_long = || ApiError::unavailable("OVERLOADED", problem);
        let answered = timeout_at(deadline, async {
            let turn = Arc::clone(line).lock_owned().await;
            let threads = match kind {
                Kind::Patterns => &self.matching,
                Kind::Plain => &self.threads,
            };
            let thread = Arc::clone(threads)
                .acquire_owned()
                .await
                .expect("nobody closes this semaphore");
            // Last of all, so that nobody has it who waits for something else.
            let share = self.parsed.take(text_bytes, deadline, problem).await?;
            let (answer, answered) = oneshot::channel();
            let started = thread::Builder::new()
                .name("attune-schema".to_owned())
                .stack_size(STACK_BYTES)
                .spawn(move || {
                    let _held = (turn, thread, share);
                    // Nobody may wait any more.
                    drop(answer.send(work()));
                });
            if let Err(error) = started {
                warn!(error.message = %error, "no thread for the check of a schema");
                return Err(too_long());
            }
            answered.await.map_err(|_| ApiError::internal())
        });
        answered.await.unwrap_or_else(|_| Err(too_long()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(100)
    }

    fn late() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[tokio::test]
    async fn who_waits_too_long_is_answered_and_only_the_same_line_waits() {
        let aside = Aside::new();
        let (slow, other) = (Line::default(), Line::default());
        let (end, ended) = mpsc::channel::<()>();
        let stuck = aside
            .run((&slow, Kind::Plain), 1, soon(), "slow", move || {
                ended.recv()
            })
            .await;
        let error = stuck.unwrap_err();
        assert_eq!(
            (error.status.as_u16(), &*error.detail.message),
            (503, "slow")
        );
        let behind = aside
            .run((&slow, Kind::Plain), 1, soon(), "slow", || 1)
            .await;
        assert_eq!(behind.unwrap_err().detail.code, "OVERLOADED");
        assert_eq!(
            aside
                .run((&other, Kind::Plain), 1, late(), "slow", || 2)
                .await,
            Ok(2)
        );
        end.send(()).unwrap();
        assert_eq!(
            aside
                .run((&slow, Kind::Plain), 1, late(), "slow", || 3)
                .await,
            Ok(3)
        );
    }

    #[tokio::test]
    async fn a_panic_is_an_error_and_gives_its_place_back() {
        let aside = Aside::new();
        let line = Line::default();
        for _ in 0..=MAX_THREADS {
            let outcome = aside.run((&line, Kind::Plain), 1, late(), "slow", || {
                panic!("on purpose")
            });
            let outcome: Result<(), ApiError> = outcome.await;
            assert_eq!(outcome.unwrap_err().status.as_u16(), 500);
        }
    }

    #[tokio::test]
    async fn patterns_keep_nobody_else_waiting() {
        let aside = Aside::new();
        let mut ends = Vec::new();
        for _ in 0..MATCHING_THREADS {
            let (end, ended) = mpsc::channel::<()>();
            let line = (&Line::default(), Kind::Patterns);
            let stuck = aside.run(line, 1, soon(), "slow", move || ended.recv());
            assert_eq!(stuck.await.unwrap_err().detail.code, "OVERLOADED");
            ends.push(end);
        }
        let more = (&Line::default(), Kind::Patterns);
        let more = aside.run(more, 1, soon(), "slow", || 1).await;
        assert_eq!(more.unwrap_err().detail.code, "OVERLOADED");
        let plain = (&Line::default(), Kind::Plain);
        assert_eq!(aside.run(plain, 1, late(), "slow", || 2).await, Ok(2));
    }
}
