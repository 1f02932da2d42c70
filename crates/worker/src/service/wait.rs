//! What the loop waits for, as futures that can be dropped at any point.

use std::future::pending;
use std::sync::Arc;

use attune_bus::{Delivery, Subscriber};
use attune_store::{Claim, StoreError};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::claims::Claiming;
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

pub(super) async fn next(subscriber: &mut Option<Subscriber>) -> Option<Delivery> {
    match subscriber {
        Some(subscriber) => subscriber.next().await,
        None => pending().await,
    }
}

pub(super) async fn registered(
    task: &mut Option<JoinHandle<Option<Arc<Life>>>>,
) -> Option<Arc<Life>> {
    let Some(running) = task else {
        return pending().await;
    };
    let life = running.await;
    *task = None;
    life.expect("registering does not panic: a store that does counts as unavailable")
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

pub(super) async fn answered(
    claim: &mut Option<Claiming>,
) -> (Claiming, Result<Vec<Claim>, StoreError>) {
    let Some(claiming) = claim else {
        return pending().await;
    };
    let answer = claiming.answer.as_mut().await;
    let claiming = claim.take().expect("it was there a moment ago");
    (claiming, answer)
}
