//! Waiting between tries.

use std::error::Error;
use std::future::Future;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::error_text::error_chain;
use crate::log_pace::LogPace;
use crate::shutdown::Shutdown;

/// The first ceiling between two tries of [`retry_until_ready`].
const RETRY_BASE: Duration = Duration::from_millis(100);
/// The highest ceiling, of [`Backoff::default`] too: a service that came back is noticed within this time.
const RETRY_CAP: Duration = Duration::from_secs(5);
/// What [`Backoff::default`] begins with: the usual trouble is over at once.
const USUAL_BASE: Duration = Duration::from_millis(50);

/// Exponential back-off with full jitter: each delay is drawn evenly from nothing to a ceiling
/// that doubles from try to try, so that clients that failed together do not return together.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    ceiling: Duration,
}

impl Default for Backoff {
    /// For a server that is away: up to 50 ms at first, and never longer than 5 s.
    fn default() -> Self {
        Self::new(USUAL_BASE, RETRY_CAP)
    }
}

impl Backoff {
    /// The first delay is at most `base`, and no delay is longer than `cap`.
    #[must_use]
    pub fn new(base: Duration, cap: Duration) -> Self {
        let base = base.min(cap);
        Self {
            base,
            cap,
            ceiling: base,
        }
    }

    /// How long to wait before the next try.
    pub fn next_delay(&mut self) -> Duration {
        let ceiling = self.ceiling;
        self.ceiling = ceiling.saturating_mul(2).min(self.cap);
        ceiling.mul_f64(rand::random::<f64>())
    }

    /// Starts over, after a success.
    pub fn reset(&mut self) {
        self.ceiling = self.base;
    }

    /// Waits before the next try.
    ///
    /// # Errors
    /// [`Stopped`] as soon as the stop is ordered.
    pub async fn wait(&mut self, stop: &CancellationToken) -> Result<(), Stopped> {
        let delay = self.next_delay();
        tokio::select! {
            biased;
            () = stop.cancelled() => Err(Stopped),
            () = tokio::time::sleep(delay) => Ok(()),
        }
    }
}

/// The stop was ordered while something was awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped while waiting")]
pub struct Stopped;

/// Tries `op` until it succeeds, for services that may start later than we do.
///
/// Logs what is awaited, for how long and why it fails, such as "waiting for PostgreSQL at
/// db:5432 for 12 s: connection refused": at once, then ever more rarely. The passwords of URLs
/// are hidden in it. `what` is a name and a place (see `Secret::endpoint`), never a URL.
///
/// A try is never cut short, because a database future must not be dropped in flight: give `op`
/// a timeout of its own kind.
///
/// # Errors
/// [`Stopped`] when the stop is ordered between two tries.
pub async fn retry_until_ready<T, E, F, Fut>(
    what: &str,
    shutdown: &Shutdown,
    op: F,
) -> Result<T, Stopped>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    retry(what, shutdown, Backoff::new(RETRY_BASE, RETRY_CAP), op).await
}

async fn retry<T, E, F, Fut>(
    what: &str,
    shutdown: &Shutdown,
    mut backoff: Backoff,
    mut op: F,
) -> Result<T, Stopped>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    let started = Instant::now();
    let mut log = LogPace::default();
    loop {
        if shutdown.is_cancelled() {
            return Err(Stopped);
        }
        let error: Box<dyn Error + Send + Sync> = match op().await {
            Ok(value) => {
                if log.has_spoken() {
                    info!("{what} is ready after {} s", started.elapsed().as_secs());
                }
                return Ok(value);
            }
            Err(error) => error.into(),
        };
        if log.is_due() {
            let (waited, problem) = (started.elapsed().as_secs(), error_chain(&*error));
            warn!("waiting for {what} for {waited} s: {problem}");
        }
        backoff.wait(shutdown.token()).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::tests::capture;

    #[test]
    fn delays_stay_below_a_doubling_ceiling() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        for _ in 0..200 {
            for ceiling in [100, 200, 350, 350] {
                let delay = backoff.next_delay();
                assert!(
                    delay <= Duration::from_millis(ceiling),
                    "{delay:?} above {ceiling} ms"
                );
            }
            backoff.reset();
        }
    }

    #[test]
    fn delays_are_spread_over_the_whole_range() {
        let cap = Duration::from_millis(100);
        let mut backoff = Backoff::new(cap, cap);
        let delays: Vec<Duration> = (0..1000).map(|_| backoff.next_delay()).collect();
        // Each fails by chance once in 0.9^1000, which is never.
        assert!(delays.iter().any(|delay| *delay < cap / 10));
        assert!(delays.iter().any(|delay| *delay > cap * 9 / 10));
    }

    #[tokio::test]
    async fn it_tries_until_it_succeeds_and_says_what_it_waits_for() {
        let (guard, log) = capture();
        let quick = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
        let mut tries = 0;
        let value = retry("RabbitMQ at mq:5672", &Shutdown::new(), quick, || {
            tries += 1;
            let outcome = if tries < 4 {
                Err(anyhow::anyhow!("connection refused").context("amqp://u:hunter2@mq failed"))
            } else {
                Ok(tries)
            };
            std::future::ready(outcome)
        })
        .await;
        drop(guard);
        assert_eq!(value, Ok(4));
        let log = log.text();
        assert!(
            log.contains(
                "waiting for RabbitMQ at mq:5672 for 0 s: amqp://u:***@mq failed: connection refused"
            ),
            "{log}"
        );
        assert_eq!(log.matches("waiting for").count(), 1, "{log}");
        assert!(
            log.contains("RabbitMQ at mq:5672 is ready after 0 s"),
            "{log}"
        );
        assert!(!log.contains("hunter2"), "{log}");
    }

    #[tokio::test]
    async fn a_first_success_says_nothing() {
        let (guard, log) = capture();
        let value = retry_until_ready("PostgreSQL at db", &Shutdown::new(), || async {
            Ok::<_, anyhow::Error>(7)
        })
        .await;
        drop(guard);
        assert_eq!((value, log.text()), (Ok(7), String::new()));
    }

    #[tokio::test]
    async fn the_stop_ends_the_wait() {
        let shutdown = Shutdown::new();
        let day = Duration::from_secs(24 * 3600);
        let mut tries = 0;
        let value: Result<(), Stopped> =
            retry("a service", &shutdown, Backoff::new(day, day), || {
                tries += 1;
                shutdown.cancel();
                std::future::ready(Err(anyhow::anyhow!("not yet")))
            })
            .await;
        assert_eq!((value, tries), (Err(Stopped), 1));
    }
}
