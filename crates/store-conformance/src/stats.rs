//! Snapshots of queues.

use std::sync::Arc;

use attune_core::policy::{Cost, OnFull, OnLimit, QueueBounds};
use attune_core::{ActionId, LacksKey, QueueStats, WorkerId};
use uuid::Uuid;

use super::support::World;
use attune_store::{StatsRow, Store};

/// An older snapshot never overwrites a newer one, whether it comes later or in the same call.
pub async fn the_newest_snapshot_wins(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let other = world.action(1, "b").await;
    assert_eq!(store.find_by_action(action.id).await.unwrap(), None);
    let row = |version: i64, length| snapshot(action.id, version, length);

    let mixed = [row(5, 50), snapshot(other.id, 1, 7), row(7, 70), row(6, 60)];
    store.upsert_queue_stats(&mixed).await.unwrap();
    let kept = store.find_by_action(action.id).await.unwrap().unwrap();
    assert_eq!(kept.stats, row(7, 70).stats);
    assert_eq!(kept.action_ref, action.spec.action_ref.as_str());

    store.upsert_queue_stats(&[row(6, 61)]).await.unwrap();
    let after = store.find_by_action(action.id).await.unwrap().unwrap();
    assert_eq!(
        after, kept,
        "an older one changes nothing, not even the time"
    );
    store.upsert_queue_stats(&[row(8, 80)]).await.unwrap();
    let newer = store.find_by_action(action.id).await.unwrap().unwrap();
    assert_eq!(newer.stats, row(8, 80).stats);
    assert!(newer.last_updated >= kept.last_updated);
    let untouched = store.find_by_action(other.id).await.unwrap().unwrap();
    assert_eq!(untouched.stats.queue_length, 7);
}

/// The longest queue comes first; empty ones and unlimited ones are listed as well.
pub async fn snapshots_are_listed_by_length(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let page = store.list_queue_stats(None, 10).await.unwrap();
    assert_eq!(page, attune_store::StatsPage::default());
    let mut rows = Vec::new();
    for (name, length) in [("short", 1), ("long", 900), ("empty", 0)] {
        let action = world.action(0, name).await;
        let mut row = snapshot(action.id, 1, length);
        if length == 0 {
            row.stats.max_concurrent = None;
            row.stats.oldest_enqueued_at = None;
            row.stats.lacks_key = None;
        }
        rows.push(row);
    }
    store.upsert_queue_stats(&rows).await.unwrap();
    let expected = [&rows[1], &rows[0], &rows[2]].map(|row| row.stats.clone());
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.list_queue_stats(after, 2).await.unwrap();
        assert!(page.rows.len() <= 2);
        assert_eq!(page.total, 3);
        let Some(last) = page.rows.last() else {
            break;
        };
        after = Some(attune_store::StatsCursor {
            queue_length: last.stats.queue_length,
            action_id: last.stats.action_id,
        });
        found.extend(page.rows.into_iter().map(|row| row.stats));
    }
    assert_eq!(found, expected);
}

/// A snapshot comes with the bounds that the action's policy sets for its queue.
pub async fn snapshots_have_the_bounds_of_their_queue(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "bounded").await;
    let mut spec = action.spec.clone();
    spec.policy.queue = QueueBounds {
        ordering: None,
        on_full: Some(OnFull::DropOldest),
        max_length: Some(7),
        timeout_seconds: Some(70),
    };
    spec.pool = "gpu".to_owned();
    spec.policy.concurrency.group_by = vec!["user".parse().unwrap()];
    spec.policy.concurrency.group_limit = Some(1);
    store.apply_action(&spec, 4, "test").await.unwrap();
    let free = world.action(0, "free").await;
    let rows = [snapshot(action.id, 1, 5), snapshot(free.id, 1, 4)];
    store.upsert_queue_stats(&rows).await.unwrap();
    let page = store.list_queue_stats(None, 10).await.unwrap();
    let bounds: Vec<_> = page.rows.iter().map(|row| row.bounds).collect();
    assert_eq!(bounds, [spec.policy.queue, QueueBounds::default()]);
    let one = store.find_by_action(action.id).await.unwrap().unwrap();
    assert_eq!(one.bounds, spec.policy.queue);
    assert_eq!((one.grouped, page.rows[1].grouped), (true, false));
    assert!(!one.replaces);
    // Of those that take more than one likewise.
    spec.policy.concurrency.group_by.clear();
    spec.policy.concurrency.group_limit = None;
    spec.policy.queue.on_full = None;
    spec.policy.concurrency.on_limit = Some(OnLimit::ReplaceWaiting);
    for max in [Some(2), None] {
        spec.policy.concurrency.limit = Some(2);
        spec.policy.concurrency.cost = max.map(|max| Cost {
            path: "labels.c".parse().unwrap(),
            default: 1,
            max,
        });
        store.apply_action(&spec, 4, "test").await.unwrap();
        let one = store.find_by_action(action.id).await.unwrap().unwrap();
        assert_eq!((one.grouped, one.replaces), (max.is_some(), true));
    }
    assert_eq!(
        (page.rows[1].pool.as_str(), one.pool.as_str()),
        ("default", "gpu")
    );
}

fn snapshot(action_id: ActionId, version: i64, queue_length: u64) -> StatsRow {
    StatsRow {
        version,
        stats: QueueStats {
            action_id,
            queue_length,
            active_count: 2,
            max_concurrent: Some(2),
            oldest_enqueued_at: Some("2026-11-21T10:00:00.123456Z".parse().unwrap()),
            total_enqueued: 1_000_000_000_000,
            total_completed: 5,
            total_cancelled: 6,
            total_expired: 7,
            lacks_key: Some(LacksKey {
                key: "k1".to_owned(),
                worker: WorkerId(Uuid::from_u128(7)),
                last_at: "2026-11-21T10:00:00.123Z".parse().unwrap(),
                executions: 3,
            }),
        },
    }
}
