//! Asking what may never answer.

use std::sync::Arc;
use std::thread;

use attune_store::{Store, StoreError};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::PATIENCE;

/// What a server answers, or nothing in time. Who does not answer is left alone: what was asked goes on by itself.
pub(super) async fn within<T: Send + 'static>(
    asking: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let asked = timeout(PATIENCE, tokio::spawn(asking)).await; // waiting only
    match asked.ok()? {
        Ok(answer) => Some(answer),
        Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
        Err(_) => None,
    }
}

/// What a store answers, likewise.
pub(super) async fn ask<T, A>(store: &Arc<dyn Store>, asking: A) -> Option<Result<T, StoreError>>
where
    T: Send + 'static,
    A: AsyncFnOnce(Arc<dyn Store>) -> Result<T, StoreError>,
{
    // The adapter runs each call in a task of its own, so nothing in flight is dropped with the waiting.
    timeout(PATIENCE, asking(Arc::clone(store))).await.ok() // waiting only
}

/// What this machine answers, likewise: on a thread that nobody waits for at the end.
pub(super) async fn aside<T: Send + 'static>(
    looking: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = oneshot::channel();
    thread::spawn(move || {
        // To nobody, when it was too late.
        let _unheard = tell.send(looking());
    });
    timeout(PATIENCE, told).await.ok()?.ok()
}

/// Closes a store, as far as that takes no time.
pub(super) async fn close(store: Arc<dyn Store>) {
    within(async move { store.close().await }).await;
}
