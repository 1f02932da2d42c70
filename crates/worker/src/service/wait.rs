//! What the loop waits for, as futures that can be dropped at any point.

use std::future::pending;

use attune_bus::Delivery;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::link::Link;
use crate::lease::Life;

pub(super) async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => pending().await,
    }
}

pub(super) async fn over(life: Option<&Life>) {
    match life {
        Some(life) => life.over().cancelled().await,
        None => pending().await,
    }
}

/// What is heard on a link.
pub(super) enum Heard {
    /// It was made anew.
    Renewed,
    /// A message, or the end of the bus.
    Message(Option<Delivery>),
}

pub(super) async fn heard(link: &mut Option<Link>) -> Heard {
    let Some(link) = link else {
        return pending().await;
    };
    link.hear().await
}

/// The end of a task that does not panic.
pub(super) async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> T {
    let Some(running) = task else {
        return pending().await;
    };
    let ended = running.await;
    *task = None;
    ended.expect("these tasks do not panic, and whoever aborts them does not wait")
}
