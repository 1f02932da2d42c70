//! The queues of an executor among the metrics: each action by itself, as far as there are not too many.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use attune_core::{Action, ActionId};
use attune_executor::QueuesView;
use attune_executor::queue::{Blocked, QueueLook};
use attune_runtime::{Gauge, Label, Meter};
use chrono::Utc;

/// How many actions have series of their own: those in which most wait or run. All others are one, as
/// `action="(other)"`.
const MOST_ACTIONS: usize = 1_000;
const OTHER: &str = "(other)";
/// One look serves all metrics of a scrape.
const LOOK_AGE: Duration = Duration::from_millis(500);

/// The refs of the actions that were loaded or looked up.
#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<HashMap<ActionId, Arc<str>>>);

impl Names {
    pub(crate) fn learn(&self, actions: &[Action]) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for action in actions {
            names
                .entry(action.id)
                .or_insert_with(|| action.spec.action_ref.as_str().into());
        }
    }

    fn of(&self, action_id: ActionId) -> Arc<str> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = names.get(&action_id).map(Arc::clone);
        name.unwrap_or_else(|| action_id.0.to_string().into())
    }
}

/// What is shown of one queue, or of several together.
#[derive(Debug, Clone, Default, PartialEq)]
struct Shown {
    action: Arc<str>,
    depth: u64,
    active: u64,
    limit: Option<u32>,
    max_length: Option<u32>,
    /// Since when the one has waited that has waited longest, in seconds.
    oldest: Option<f64>,
    ended: u64,
    waits_for: Option<&'static str>,
}

/// Looks at all queues, once for all metrics that want to know.
struct Look {
    queues: QueuesView,
    names: Arc<Names>,
    last: Mutex<Option<(Instant, Arc<[Shown]>)>>,
}

impl Look {
    fn now(&self) -> Arc<[Shown]> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, shown)) = &*last
            && at.elapsed() < LOOK_AGE
        {
            return Arc::clone(shown);
        }
        let looks = self.queues.look_at_all();
        let shown: Arc<[Shown]> = shown(looks, MOST_ACTIONS, |id| self.names.of(id)).into();
        *last = Some((Instant::now(), Arc::clone(&shown)));
        shown
    }
}

/// Shows what is in the queues.
pub(crate) fn export(queues: &QueuesView, names: Arc<Names>, meter: &Meter) {
    let look = Arc::new(Look {
        queues: queues.clone(),
        names,
        last: Mutex::default(),
    });
    let gauge = |name, help: &str, value: fn(&Shown) -> Option<f64>| {
        let look = Arc::clone(&look);
        Gauge::show_all(meter, name, help, move || {
            let shown = look.now();
            let values = shown
                .iter()
                .filter_map(|queue| Some((value(queue)?, labels(queue))));
            values.collect::<Vec<_>>()
        });
    };
    gauge("queue.depth", "Executions that wait, by action.", |queue| {
        Some(queue.depth as f64)
    });
    gauge(
        "queue.active",
        "Executions that hold a slot, by action.",
        |queue| Some(queue.active as f64),
    );
    let help = "How many executions of the action may hold a slot at once, where that is limited.";
    gauge("queue.limit", help, |queue| queue.limit.map(f64::from));
    let help = "How many executions of the action may wait.";
    gauge("queue.max_length", help, |queue| {
        queue.max_length.map(f64::from)
    });
    let help = "How long the execution has waited that has waited longest, by action.";
    gauge("queue.oldest_seconds", help, |queue| queue.oldest);
    let waits = Arc::clone(&look);
    let help = "Executions that wait, by action and what the first of them waits for: a slot of its action (limit), \
                of its group (group), a worker with room (worker), its worker (lane), its rate (rate), its time \
                (delay), operators (pause), or nothing, where it is about to be given one.";
    Gauge::show_all(meter, "queue.waits", help, move || {
        let shown = waits.now();
        let values = shown.iter().filter_map(|queue| {
            let mut labels = labels(queue);
            labels.push(Label::new("for", queue.waits_for?));
            Some((queue.depth as f64, labels))
        });
        values.collect::<Vec<_>>()
    });
    let help = "Executions that have ended, by action, over the life of its queue: restarts and moves to other \
                executors do not set it back.";
    meter
        .u64_observable_counter("queue.ended.total")
        .with_description(help)
        .with_callback(move |observer| {
            for queue in look.now().iter().filter(|queue| &*queue.action != OTHER) {
                observer.observe(queue.ended, &labels(queue));
            }
        })
        .build();
}

fn labels(queue: &Shown) -> Vec<Label> {
    vec![Label::new("action", Arc::clone(&queue.action))]
}

/// What is shown of these queues: the `most` in which most wait or run by themselves.
fn shown(
    mut looks: Vec<QueueLook>,
    most: usize,
    name: impl Fn(ActionId) -> Arc<str>,
) -> Vec<Shown> {
    let size = |look: &QueueLook| {
        let stats = &look.stats;
        let size = stats.queue_length + stats.active_count;
        Reverse((size, stats.total_enqueued, Reverse(stats.action_id)))
    };
    if looks.len() > most {
        looks.select_nth_unstable_by_key(most, size);
    }
    let others = looks.split_off(looks.len().min(most));
    let now = Utc::now();
    let oldest = |look: &QueueLook| {
        let waited = now - look.stats.oldest_enqueued_at?;
        Some(waited.as_seconds_f64().max(0.0))
    };
    let mut shown: Vec<Shown> = looks
        .iter()
        .map(|look| Shown {
            action: name(look.stats.action_id),
            depth: look.stats.queue_length,
            active: look.stats.active_count,
            limit: look.stats.max_concurrent,
            max_length: Some(look.max_length),
            oldest: oldest(look),
            ended: look.stats.total_completed
                + look.stats.total_cancelled
                + look.stats.total_expired,
            waits_for: (look.stats.queue_length > 0).then(|| waits_for(look.blocked)),
        })
        .collect();
    // Also where there are none: whoever looks for the metric finds it.
    shown.push(Shown {
        action: OTHER.into(),
        depth: others.iter().map(|look| look.stats.queue_length).sum(),
        active: others.iter().map(|look| look.stats.active_count).sum(),
        oldest: others.iter().filter_map(oldest).reduce(f64::max),
        ..Shown::default()
    });
    shown
}

fn waits_for(blocked: Option<Blocked>) -> &'static str {
    match blocked {
        None => "nothing",
        // All that wait stand ahead of slots at their worker.
        Some(Blocked::Empty | Blocked::Line) => "lane",
        Some(Blocked::Delayed { .. }) => "delay",
        Some(Blocked::Limit { .. }) => "limit",
        Some(Blocked::Groups | Blocked::Regrouping) => "group",
        Some(Blocked::Rate { .. }) => "rate",
        Some(Blocked::PoolClosed) => "worker",
        Some(Blocked::Key { .. }) => "key",
        Some(Blocked::Paused) => "pause",
    }
}

#[cfg(test)]
mod tests {
    use attune_core::QueueStats;
    use chrono::TimeDelta;

    use super::*;

    fn look(action: i64, waiting: u64, active: u64) -> QueueLook {
        QueueLook {
            stats: QueueStats {
                action_id: ActionId(action),
                queue_length: waiting,
                active_count: active,
                max_concurrent: Some(2),
                oldest_enqueued_at: (waiting > 0).then(|| Utc::now() - TimeDelta::seconds(action)),
                total_enqueued: 100,
                total_completed: 20,
                total_cancelled: 3,
                total_expired: 1,
                lacks_key: None,
            },
            max_length: 50,
            blocked: Some(Blocked::Limit { limit: 2 }),
        }
    }

    #[test]
    fn the_busiest_actions_are_shown_and_all_others_together() {
        let looks = (1..=5).map(|id| look(id, id as u64 * 10, 2)).collect();
        let shown = shown(looks, 2, |id| format!("it.a{}", id.0).into());
        let of = |action: &str| shown.iter().find(|queue| &*queue.action == action).unwrap();
        assert_eq!(shown.len(), 3);
        let busiest = of("it.a5");
        assert_eq!((busiest.depth, busiest.active, busiest.ended), (50, 2, 24));
        assert_eq!((busiest.limit, busiest.max_length), (Some(2), Some(50)));
        assert_eq!(busiest.waits_for, Some("limit"));
        let other = of(OTHER);
        assert_eq!((other.depth, other.active), (60, 6));
        assert!((3.0..4.0).contains(&other.oldest.unwrap()), "{other:?}");
        assert_eq!((other.limit, other.waits_for), (None, None));
        assert_eq!(of("it.a4").depth, 40);
    }

    #[test]
    fn without_actions_nothing_waits() {
        let shown = shown(Vec::new(), 2, |_| "".into());
        assert_eq!((shown.len(), shown[0].depth), (1, 0));
    }
}
