//! What the pieces take from `std::sync` and `tokio::sync`.

pub use real_tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
pub use shuttle::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
    atomic,
};

use std::cell::Cell;

thread_local! {
    static FORGETFUL: Cell<bool> = const { Cell::new(false) };
}

/// Plants a bug: from now on a notification that nobody waits for is lost, as with
/// `notify_waiters`. Whoever looks first and waits second then sleeps for ever.
pub fn forget_notifications(forget: bool) {
    FORGETFUL.set(forget);
}

/// Tokio's own `Notify`, with a point before each of its steps at which others may run.
#[derive(Debug, Default)]
pub struct Notify(real_tokio::sync::Notify);

impl Notify {
    /// As tokio's.
    pub fn new() -> Self {
        Self::default()
    }

    /// As tokio's.
    pub fn notify_one(&self) {
        shuttle::thread::yield_now();
        if FORGETFUL.get() {
            self.0.notify_waiters();
        } else {
            self.0.notify_one();
        }
    }

    /// As tokio's.
    pub async fn notified(&self) {
        shuttle::thread::yield_now();
        self.0.notified().await;
    }
}
