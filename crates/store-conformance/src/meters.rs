//! What is counted for limits: written with a round, under its fence, and loaded in pages.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{ActionSpec, PartitionId};
use attune_store::{Batch, HistoryRetention, Meter, MeterPlace, MeterRow, RecordRetention, Store};
use chrono::{TimeDelta, Utc};

use super::support::{World, fenced, partitions};

fn meter(partition: u16, limit: &str, key: u8, state: &[u8]) -> Meter {
    Meter {
        partition: PartitionId(partition),
        place: MeterPlace {
            limit_id: limit.to_owned(),
            key: [key; 16],
        },
        state: state.to_vec(),
        expires_at: Utc::now() + TimeDelta::hours(1),
    }
}

async fn load(store: &dyn Store, partition: u16, limit: u32) -> Vec<MeterRow> {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = store.load_meters(PartitionId(partition), after, limit);
        let page = page.await.unwrap();
        assert!(page.rows.len() <= limit as usize);
        assert_eq!(page.next.is_some(), page.rows.len() == limit as usize);
        rows.extend(page.rows);
        match page.next {
            Some(next) => after = Some(next),
            None => return rows,
        }
    }
}

async fn maintain(store: &dyn Store) {
    let day = Duration::from_secs(24 * 3600);
    let keep = HistoryRetention {
        history: day,
        requests: day,
        records: RecordRetention::USUAL,
    };
    store.maintain_history(keep).await.unwrap();
}

/// The last that was written of each is loaded, in as many pages as there are, with the time of the store.
pub async fn meters_are_written_and_loaded_in_pages(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let before = store.now().await.unwrap() - TimeDelta::milliseconds(2);
    let mut meters: Vec<Meter> = (0..5).map(|key| meter(1, "b", key, &[key, 0])).collect();
    meters.push(meter(1, "a", 255, &[]));
    meters.push(meter(2, "b", 0, &[9; 600]));
    // Nothing else is written: counting alone is a round, too.
    world
        .commit(&Batch {
            meters,
            ..world.batch()
        })
        .await;
    let again = vec![meter(1, "b", 3, &[7, 8, 9])];
    let again = Batch {
        meters: again,
        ..world.batch()
    };
    for _ in 0..2 {
        world.commit(&again).await;
    }
    let after = store.now().await.unwrap() + TimeDelta::milliseconds(2);

    for limit in [2, 3, 100] {
        let rows = load(&*store, 1, limit).await;
        let found = rows.iter().map(|row| {
            assert!(before <= row.written_at && row.written_at <= after);
            (
                row.place.limit_id.as_str(),
                row.place.key[0],
                row.state.as_slice(),
            )
        });
        let found: Vec<_> = found.collect();
        let expected: [(&str, u8, &[u8]); 6] = [
            ("a", 255, &[]),
            ("b", 0, &[0, 0]),
            ("b", 1, &[1, 0]),
            ("b", 2, &[2, 0]),
            ("b", 3, &[7, 8, 9]),
            ("b", 4, &[4, 0]),
        ];
        assert_eq!(found, expected);
    }
    assert_eq!(load(&*store, 2, 100).await[0].state, [9; 600]);
    assert_eq!(load(&*store, 3, 100).await, []);
}

/// Who was overtaken counts nothing.
pub async fn a_stale_owner_counts_nothing(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let count = |state: u8| Batch {
        meters: partitions()
            .iter()
            .map(|partition| meter(partition.0, "a", 1, &[state]))
            .collect(),
        ..world.batch()
    };
    world.commit(&count(1)).await;
    world.lose(1).await;
    assert_eq!(fenced(store.commit(&count(2)).await), [1]);
    for partition in partitions() {
        assert_eq!(load(&*store, partition.0, 10).await[0].state, [1]);
    }
}

/// More than a few chunks of an upkeep, and every third of them counts still.
pub async fn the_upkeep_removes_what_counts_no_more_and_nothing_else(store: Arc<dyn Store>) {
    const COUNT: u32 = 2_600;
    let world = World::new(Arc::clone(&store)).await;
    let counts = |number: u32| number.is_multiple_of(3);
    let meters = (0..COUNT).map(|number| {
        let over_since = if counts(number) { -1 } else { 2 };
        let mut key = [0; 16];
        key[..4].copy_from_slice(&number.to_be_bytes());
        Meter {
            partition: PartitionId(u16::try_from(number % 2 + 1).unwrap_or(1)),
            place: MeterPlace {
                limit_id: "a".to_owned(),
                key,
            },
            state: number.to_be_bytes().to_vec(),
            expires_at: Utc::now() - TimeDelta::hours(over_since),
        }
    });
    let batch = Batch {
        meters: meters.collect(),
        ..world.batch()
    };
    world.commit(&batch).await;
    for _ in 0..2 {
        maintain(&*store).await;
        let mut left = Vec::new();
        for partition in [1, 2] {
            let rows = load(&*store, partition, 1_000).await;
            left.extend(rows.into_iter().map(|row| row.state));
        }
        left.sort_unstable();
        let expected = (0..COUNT).filter(|number| counts(*number));
        let expected: Vec<_> = expected.map(|it| it.to_be_bytes().to_vec()).collect();
        assert_eq!(left, expected);
    }
}

/// Rows of a limit that is longer now than when they were written say something still, whatever they say
/// themselves.
pub async fn the_upkeep_keeps_what_counts_for_a_limit_that_was_lengthened(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let mut spec = ActionSpec::core_pack().remove(0);
    spec.action_ref = "pack.rated_1".parse().unwrap();
    let policy = r#"{"rate_limit": {"max_executions": 1, "window_seconds": 86400}, "min_interval_ms": 86400000}"#;
    spec.policy = serde_json::from_str(policy).unwrap();
    store.apply_action(&spec, 3, "tester").await.unwrap();
    let over = |limit: &str| Meter {
        expires_at: Utc::now() - TimeDelta::hours(2),
        ..meter(1, limit, 7, &[1])
    };
    let kept = [
        "action/pack.rated_1/min_interval_ms",
        "action/pack.rated_1/rate_limit",
        "action/pack.rated_1/rate_limit/00000000000000ff",
    ];
    let gone = [
        "action/pack.rated/rate_limit",
        "action/pack.rated_1/quotas/day",
        "action/pack.ratedx1/rate_limit",
    ];
    let meters = kept.iter().chain(&gone).map(|limit| over(limit));
    let batch = Batch {
        meters: meters.collect(),
        ..world.batch()
    };
    world.commit(&batch).await;
    maintain(&*store).await;
    let left = load(&*store, 1, 100).await;
    let left: Vec<&str> = left.iter().map(|it| it.place.limit_id.as_str()).collect();
    assert_eq!(left, kept);
    // Of a limit that is as short as it was, nothing counts any more.
    spec.policy = serde_json::from_str("{}").unwrap();
    store.apply_action(&spec, 3, "tester").await.unwrap();
    maintain(&*store).await;
    assert_eq!(load(&*store, 1, 100).await, []);
}
