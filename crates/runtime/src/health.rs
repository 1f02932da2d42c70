//! What a daemon waits for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

use crate::progress::{Loops, Progress};

/// The components of one daemon and how they are; cheap to clone.
#[derive(Debug, Clone)]
pub struct Health {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Held for single statements, never across an await.
    state: Mutex<HealthState>,
    /// Counts changes, so that a waiter looks again.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct HealthState {
    components: BTreeMap<String, ComponentState>,
    loops: Loops,
    stopping: bool,
}

/// How a component is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", content = "reason", rename_all = "lowercase")]
pub enum ComponentState {
    /// It works.
    Ready,
    /// It cannot work until something happens; the reason says what.
    Waiting(String),
    /// One of its loops makes no rounds any more; the reason says for how long.
    Stalled(String),
}

/// All components at one moment; what `/healthz` and `/readyz` show.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HealthSnapshot {
    /// Whether there are components, all are ready and the daemon is not stopping.
    pub ready: bool,
    /// Whether the daemon is on its way out.
    pub stopping: bool,
    /// The components by name.
    pub components: BTreeMap<String, ComponentState>,
}

/// The handle with which a component tells how it is; cheap to clone and to use.
#[derive(Debug, Clone)]
pub struct Component {
    name: String,
    health: Health,
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// Without components, which is not ready: a daemon that has not begun must not be sent work.
    #[must_use]
    pub fn new() -> Self {
        let (changes, _) = watch::channel(0);
        Self {
            shared: Arc::new(Shared {
                state: Mutex::default(),
                changes,
            }),
        }
    }

    /// Adds a component, which waits for its "start" at first. A name that exists already gives
    /// another handle to the same component and leaves it as it is.
    #[must_use]
    pub fn component(&self, name: impl Into<String>) -> Component {
        let name = name.into();
        self.change(|state| {
            if state.components.contains_key(&name) {
                return false;
            }
            state
                .components
                .insert(name.clone(), ComponentState::Waiting("start".to_owned()));
            true
        });
        Component {
            name,
            health: self.clone(),
        }
    }

    /// Adds a loop, which must stamp at least once per `bound` from its first stamp on, except
    /// while it rests. While it does not, the daemon is not ready and the watchdog of the service
    /// manager is not told that all is well.
    #[must_use]
    pub fn progress(&self, name: impl Into<String>, bound: Duration) -> Progress {
        self.state().loops.add(name.into(), bound)
    }

    /// Which loops make no rounds, in one line; `None` when all do.
    #[must_use]
    pub fn stalled(&self) -> Option<String> {
        let state = self.state();
        let problems = state.loops.alive();
        let problems: Vec<_> = problems
            .filter_map(|rounds| Some(format!("{}: {}", rounds.name, rounds.problem()?)))
            .collect();
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    /// The stop has begun: from now on the daemon is not ready, whatever its components say.
    pub fn stopping(&self) {
        self.change(|state| !std::mem::replace(&mut state.stopping, true));
    }

    /// How everything is now.
    #[must_use]
    pub fn snapshot(&self) -> HealthSnapshot {
        let state = self.state();
        let mut components = state.components.clone();
        let mut is_stalled = false;
        for rounds in state.loops.alive() {
            let problem = rounds.problem();
            is_stalled |= problem.is_some();
            components.insert(
                rounds.name.clone(),
                problem.map_or(ComponentState::Ready, ComponentState::Stalled),
            );
        }
        HealthSnapshot {
            ready: state.is_ready() && !is_stalled,
            stopping: state.stopping,
            components,
        }
    }

    /// Waits until everything is ready. Cancel-safe.
    pub async fn wait_ready(&self) {
        let mut changes = self.shared.changes.subscribe();
        // The sender lives as long as `self`, so this cannot fail.
        let _ = changes.wait_for(|_| self.state().is_ready()).await;
    }

    fn state(&self) -> MutexGuard<'_, HealthState> {
        // Single statements cannot leave it half changed, so a poisoned lock is still good.
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a change, and wakes waiters if there was one.
    fn change(&self, apply: impl FnOnce(&mut HealthState) -> bool) {
        let changed = apply(&mut self.state());
        if changed {
            self.shared
                .changes
                .send_modify(|count| *count = count.wrapping_add(1));
        }
    }
}

impl HealthState {
    fn is_ready(&self) -> bool {
        !self.stopping
            && !self.components.is_empty()
            && self
                .components
                .values()
                .all(|state| *state == ComponentState::Ready)
    }
}

impl Component {
    /// It works.
    pub fn ready(&self) {
        self.set(ComponentState::Ready);
    }

    /// It cannot work until something happens, such as "PostgreSQL at db:5432". Shown to
    /// whoever asks: no secrets.
    pub fn waiting(&self, reason: impl Into<String>) {
        self.set(ComponentState::Waiting(reason.into()));
    }

    fn set(&self, new: ComponentState) {
        self.health
            .change(|state| match state.components.get_mut(&self.name) {
                Some(old) if *old != new => {
                    *old = new;
                    true
                }
                _ => false,
            });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_means_all_components_and_no_stop() {
        let health = Health::new();
        assert!(
            !health.snapshot().ready,
            "a daemon without components has not begun"
        );

        let store = health.component("store");
        let bus = health.component("bus");
        assert_eq!(
            health.snapshot().components["bus"],
            ComponentState::Waiting("start".to_owned())
        );
        store.ready();
        assert!(!health.snapshot().ready);
        bus.ready();
        assert!(health.snapshot().ready);

        bus.waiting("RabbitMQ at mq:5672");
        assert!(!health.snapshot().ready);
        // The same component again, as when a role starts anew: it is not reset.
        health.component("bus").clone().ready();
        assert!(health.snapshot().ready);

        health.stopping();
        assert!(!health.snapshot().ready);
        assert!(health.snapshot().stopping);
    }

    #[test]
    fn a_loop_that_makes_no_rounds_is_not_ready() {
        let health = Health::new();
        health.component("store").ready();
        let bound = Duration::from_secs(3600);
        let good = health.progress("good", bound);
        assert!(health.snapshot().ready && health.stalled().is_none());
        // Its bound is over at once.
        let stuck = health.progress("stuck", Duration::ZERO);
        assert!(health.snapshot().ready, "it has not begun");
        stuck.stamp();
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while health.stalled().is_none() {
            assert!(std::time::Instant::now() < deadline, "nobody noticed");
            std::thread::yield_now();
        }
        let snapshot = health.snapshot();
        assert!(!snapshot.ready);
        assert_eq!(snapshot.components["good"], ComponentState::Ready);
        let ComponentState::Stalled(reason) = &snapshot.components["stuck"] else {
            panic!("{snapshot:?}");
        };
        assert!(
            reason.starts_with("no round for 0.0 s; at most 0.0 s"),
            "{reason}"
        );
        // While it has nothing to do, it is as good as one that works.
        stuck.rest();
        assert!(health.snapshot().ready && health.stalled().is_none());
        good.stamp();
        stuck.stamp();
        // One that has ended is not asked any more.
        drop(stuck);
        let snapshot = health.snapshot();
        assert!(snapshot.ready && !snapshot.components.contains_key("stuck"));
    }

    #[test]
    fn the_snapshot_is_plain_json() {
        let health = Health::new();
        health.component("bus").waiting("RabbitMQ at mq:5672");
        health.component("store").ready();
        assert_eq!(
            serde_json::to_value(health.snapshot()).unwrap(),
            serde_json::json!({
                "ready": false,
                "stopping": false,
                "components": {
                    "bus": {"state": "waiting", "reason": "RabbitMQ at mq:5672"},
                    "store": {"state": "ready"},
                },
            })
        );
    }

    #[tokio::test]
    async fn waiters_wake_when_the_last_component_is_ready() {
        let health = Health::new();
        let (store, bus) = (health.component("store"), health.component("bus"));
        store.ready();
        let waiter = tokio::spawn({
            let health = health.clone();
            async move { health.wait_ready().await }
        });
        // The current-thread runtime runs the waiter here, until it waits.
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        bus.ready();
        waiter.await.unwrap();
        health.wait_ready().await; // ready already: returns at once
    }
}
