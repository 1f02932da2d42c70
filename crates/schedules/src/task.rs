//! What the pieces take from `tokio::task`.

pub use real_tokio::task::coop;
pub use shuttle::future::{JoinError, JoinHandle};

/// Starts a task that shuttle schedules.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    shuttle::future::spawn(future)
}
