//! One executor of several, on a runtime of its own, so that it can end as a process does.

use std::sync::Arc;
use std::thread::JoinHandle;

use attune_bus::Bus;
use attune_core::OwnerId;
use attune_executor::QueuesView;
use attune_executor::owner::Trouble;
use attune_executor_service::{Counters, ExecutorHandle, ExecutorOptions, start};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::remote::{Door, Remote};
use crate::system::{System, until};

/// An executor.
pub(crate) struct Member {
    pub(crate) id: OwnerId,
    /// The way to its store.
    pub(crate) door: Arc<Door>,
    /// How many partitions it serves.
    pub(crate) owned: watch::Receiver<usize>,
    /// What it has counted.
    pub(crate) counters: Arc<Counters>,
    /// What keeps it from its work.
    pub(crate) trouble: watch::Receiver<Option<Trouble>>,
    /// Its queues.
    pub(crate) queues: QueuesView,
    fenced: mpsc::UnboundedSender<oneshot::Sender<u64>>,
    stop: CancellationToken,
    kill: CancellationToken,
    thread: JoinHandle<()>,
}

impl Member {
    pub(crate) async fn start(system: &System, options: ExecutorOptions) -> Self {
        Self::start_on(system, options, Arc::new(system.bus.clone())).await
    }

    /// Starts it on a bus of its own kind.
    pub(crate) async fn start_on(
        system: &System,
        options: ExecutorOptions,
        bus: Arc<dyn Bus>,
    ) -> Self {
        let door = Arc::new(Door::new());
        let store = Arc::new(Remote {
            store: system.store.clone(),
            home: tokio::runtime::Handle::current(),
            door: Arc::clone(&door),
        });
        let (stop, kill) = (CancellationToken::new(), CancellationToken::new());
        let (told, started) = oneshot::channel();
        let (fenced, mut asked) = mpsc::unbounded_channel::<oneshot::Sender<u64>>();
        let (stopping, killed) = (stop.clone(), kill.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let handle: ExecutorHandle =
                    start(options, store, bus, stopping.clone()).await.unwrap();
                let seen = (handle.owned(), handle.trouble(), handle.queues().clone());
                assert!(told.send((handle.id(), handle.counters(), seen)).is_ok());
                loop {
                    tokio::select! {
                        () = killed.cancelled() => return,
                        () = stopping.cancelled() => return handle.stopped().await,
                        Some(answer) = asked.recv() => answer.send(handle.fenced()).unwrap(),
                    }
                }
            });
        });
        let (id, counters, (owned, trouble, queues)) = started.await.unwrap();
        Self {
            id,
            door,
            owned,
            counters,
            trouble,
            queues,
            fenced,
            stop,
            kill,
            thread,
        }
    }

    /// Asks it to stop and waits until it has.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.end().await;
    }

    /// Ends it as `kill -9` does: nothing of it goes on, nothing is given up.
    pub(crate) async fn kill(self) {
        self.kill.cancel();
        self.end().await;
    }

    async fn end(self) {
        until("the thread has ended", async || {
            self.thread.is_finished().then_some(())
        })
        .await;
        self.thread.join().unwrap();
    }

    /// Waits until it serves so many partitions.
    pub(crate) async fn serves(&self, count: usize) {
        let mut owned = self.owned.clone();
        until(&format!("{count} partitions are served"), async || {
            (*owned.borrow_and_update() == count).then_some(())
        })
        .await;
    }

    /// How many of its commits were refused.
    pub(crate) async fn fenced(&self) -> u64 {
        let (ask, answer) = oneshot::channel();
        self.fenced.send(ask).unwrap();
        answer.await.unwrap()
    }
}
