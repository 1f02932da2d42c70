//! Tells the store of lives whose processes are gone, so that their slots come back at once and not
//! with the end of their leases.
//!
//! Whoever was killed cannot say so itself. Its guard kills what it ran and marks the file of what had
//! begun ([`begun`](crate::begun)); every worker that uses the same folder looks for such files: the one that
//! is started in its place, or another one beside it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use attune_runtime::error_chain;
use attune_store::WorkerStore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::begun::{Former, former};
use crate::lease::{Announce, answer};

/// Between two looks.
const PERIOD: Duration = Duration::from_millis(500);
/// How long the store may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Looks until the worker stops.
pub(crate) async fn tell_of_former(
    state_dir: PathBuf,
    store: Arc<dyn WorkerStore>,
    announce: Announce,
    stop: CancellationToken,
) {
    loop {
        let folder = state_dir.clone();
        let found = tokio::task::spawn_blocking(move || former(&folder)).await;
        match found {
            Ok(Ok(found)) => {
                for life in found {
                    tell(&store, &announce, life).await;
                }
            }
            Ok(Err(error)) => {
                let path = state_dir.display();
                tracing::debug!(%path, %error, "the folder of former lives cannot be read");
            }
            Err(_) => return,
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// Tells of one. What could not be told is found again by the next look.
async fn tell(store: &Arc<dyn WorkerStore>, announce: &Announce, life: Former) {
    let Former {
        worker,
        path,
        begun,
    } = life;
    let begun_count = begun.as_ref().map(Vec::len);
    let store = Arc::clone(store);
    let call = tokio::spawn(async move { store.worker_over(worker, begun.as_deref()).await });
    match answer(call, Instant::now() + PATIENCE).await {
        Ok(true) => {
            tracing::warn!(
                worker.id = %worker,
                begun_count,
                "a worker was killed, and nothing of it is left; its slots come back"
            );
            announce(worker);
        }
        // A life of another system, whose workers use the same folder.
        Ok(false) => return,
        Err(error) => {
            let error = error_chain(&error);
            tracing::warn!(worker.id = %worker, error, "the store was not told of a worker's end");
            return;
        }
    }
    let removing = tokio::task::spawn_blocking(move || std::fs::remove_file(path));
    // Where another worker has removed it, too, all is said.
    let _ = removing.await;
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use attune_core::{Attempt, ExecutionId, WorkerId};
    use attune_dispatch::Key;
    use attune_store::{StoreError, WorkerLease, WorkerRow};
    use tokio::sync::mpsc;

    use super::*;
    use crate::begun::{BegunMap, mark};
    use crate::guard::Guard;

    /// Knows some workers, and is away when it is asked for the first time.
    struct Store {
        known: WorkerId,
        was_away: Mutex<bool>,
        told: Mutex<Vec<(WorkerId, Option<Vec<Key>>)>>,
    }

    #[async_trait]
    impl WorkerStore for Store {
        async fn renew_worker(&self, _: &WorkerLease) -> Result<(), StoreError> {
            Ok(())
        }

        async fn retire_worker(&self, _: WorkerId, _: Option<&[Key]>) -> Result<(), StoreError> {
            Ok(())
        }

        async fn worker_over(
            &self,
            worker: WorkerId,
            begun: Option<&[Key]>,
        ) -> Result<bool, StoreError> {
            if worker != self.known {
                return Ok(false);
            }
            if !std::mem::replace(&mut *self.was_away.lock().unwrap(), true) {
                return Err(StoreError::Unavailable("away".into()));
            }
            let told = (worker, begun.map(<[Key]>::to_vec));
            self.told.lock().unwrap().push(told);
            Ok(true)
        }

        async fn principal_of(&self, _: WorkerId) -> Result<Option<Option<String>>, StoreError> {
            Ok(None)
        }

        async fn workers(&self) -> Result<Vec<WorkerRow>, StoreError> {
            Ok(Vec::new())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_killed_is_told_of_once_and_what_is_told_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (life, foreign) = (WorkerId::fresh(), WorkerId::fresh());
        let key = (ExecutionId(1), Attempt(2));
        let maps = [life, foreign].map(|life| {
            let mut map = BegunMap::make(dir.path(), life, &Guard::none()).unwrap();
            map.begin(&[key], |_| true).unwrap();
            map.let_go();
            mark(map.path()).unwrap();
            map
        });
        let store = Arc::new(Store {
            known: life,
            was_away: Mutex::new(false),
            told: Mutex::default(),
        });
        let (said, mut announced) = mpsc::unbounded_channel();
        let announce: Announce = Box::new(move |worker| said.send(worker).unwrap());
        let stop = CancellationToken::new();
        let telling = tell_of_former(dir.path().to_owned(), store.clone(), announce, stop.clone());
        let telling = tokio::spawn(telling);
        assert_eq!(announced.recv().await, Some(life));
        tokio::time::timeout(PERIOD * 4, announced.recv())
            .await
            .expect_err("nothing is left to tell");
        stop.cancel();
        telling.await.unwrap();
        assert_eq!(*store.told.lock().unwrap(), [(life, Some(vec![key]))]);
        // Workers of another system may use the same folder.
        let there = maps.each_ref().map(|map| map.path().exists());
        assert_eq!(there, [false, true]);
    }
}
