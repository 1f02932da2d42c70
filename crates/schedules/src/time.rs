//! What the pieces take from `tokio::time`: a clock that moves when a scenario says so.

use std::cell::RefCell;
use std::ops::Add;
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::Duration;

#[derive(Default)]
struct Clock {
    now: Duration,
    sleepers: Vec<(Duration, Waker)>,
}

thread_local! {
    // All tasks of one schedule run on one thread.
    static CLOCK: RefCell<Clock> = RefCell::default();
}

pub(crate) fn reset() {
    CLOCK.take();
}

/// Lets time pass.
pub fn advance(by: Duration) {
    shuttle::thread::yield_now();
    let due: Vec<Waker> = CLOCK.with_borrow_mut(|clock| {
        clock.now += by;
        let now = clock.now;
        clock
            .sleepers
            .extract_if(.., |(until, _)| *until <= now)
            .map(|(_, waker)| waker)
            .collect()
    });
    due.into_iter().for_each(Waker::wake);
}

/// A moment of that clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// As tokio's.
    pub fn now() -> Self {
        Self(CLOCK.with_borrow(|clock| clock.now))
    }

    /// As tokio's.
    pub fn checked_add(&self, by: Duration) -> Option<Self> {
        self.0.checked_add(by).map(Self)
    }

    /// As tokio's.
    pub fn elapsed(&self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0 + by)
    }
}

/// It took too long.
#[derive(Debug, thiserror::Error)]
#[error("deadline has elapsed")]
pub struct Elapsed(());

/// As tokio's.
pub async fn sleep_until(until: Instant) {
    std::future::poll_fn(|context| {
        CLOCK.with_borrow_mut(|clock| {
            if clock.now >= until.0 {
                return Poll::Ready(());
            }
            clock.sleepers.push((until.0, context.waker().clone()));
            Poll::Pending
        })
    })
    .await;
}

/// As tokio's.
pub async fn sleep(duration: Duration) {
    sleep_until(Instant::now() + duration).await;
}

/// As tokio's.
///
/// # Errors
/// When the time came first.
pub async fn timeout_at<F: Future>(until: Instant, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = pin!(sleep_until(until));
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        sleep.as_mut().poll(context).map(|()| Err(Elapsed(())))
    })
    .await
}
