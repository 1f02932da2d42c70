//! Work that must not be dropped half-way.

/// Runs work in a task of its own: whoever waits for it may be dropped, and then it is finished
/// all the same. A database future in flight must not be dropped.
///
/// # Panics
/// When the work does.
pub async fn in_task<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    match tokio::spawn(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is being shut down and will drop this future as well.
            Err(_) => std::future::pending().await,
        },
    }
}
