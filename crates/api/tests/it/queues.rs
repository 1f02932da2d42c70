//! Queue statistics.

use std::sync::Arc;
use std::time::Duration;

use attune_api::{LiveQueues, router};
use attune_core::policy::QueueBounds;
use attune_core::{ActionId, Epoch, OwnerId, PartitionId, QueueStats, WorkerId};
use attune_store::{Lease, LeaseTrouble, StoredStats, WorkerRow};
use axum::Router;
use axum::http::StatusCode;
use chrono::{TimeDelta, Utc};
use serde_json::{Value, json};

use crate::harness::{Api, options};

/// A worker whose lease holds for so long.
fn worker(remaining: Duration) -> WorkerRow {
    WorkerRow {
        worker: WorkerId::fresh(),
        name: "w".to_owned(),
        pool: "default".to_owned(),
        slots: 4,
        remaining,
        seen_ago: None,
        draining: false,
    }
}

fn api() -> Api {
    let api = Api::new();
    api.fake.add_action("core.echo", |spec| {
        spec.policy.concurrency.limit = Some(2);
        spec.policy.queue.max_length = Some(10);
    });
    api.fake.add_action("core.noop", |_| {});
    api.fake.with(|state| {
        state.workers = vec![worker(Duration::from_secs(30))];
        state.stats.push(StoredStats {
            action_ref: "core.echo".to_owned(),
            pool: "default".to_owned(),
            stats: QueueStats {
                action_id: ActionId(1),
                queue_length: 9,
                active_count: 2,
                max_concurrent: Some(2),
                oldest_enqueued_at: Some(Utc::now() - TimeDelta::minutes(10)),
                total_enqueued: 20,
                total_completed: 9,
                total_cancelled: 0,
                total_expired: 0,
                lacks_key: None,
            },
            last_updated: Utc::now(),
            grouped: false,
            counted: false,
            replaces: false,
            bounds: QueueBounds {
                ordering: None,
                on_full: None,
                max_length: Some(10),
                timeout_seconds: None,
            },
        });
    });
    api
}

#[tokio::test]
async fn a_queue_shows_its_figures_and_a_verdict() {
    let api = api();
    let answer = api.get("/api/v1/actions/core.echo/queue-stats").await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    for (name, value) in [
        ("action_ref", json!("core.echo")),
        ("action_id", json!(1)),
        ("queue_length", json!(9)),
        ("active_count", json!(2)),
        ("max_concurrent", json!(2)),
        ("total_enqueued", json!(20)),
        ("total_completed", json!(9)),
        ("max_length", json!(10)),
        ("timeout_seconds", json!(3600)),
    ] {
        assert_eq!(answer.body[name], value, "{name}");
    }
    assert!(answer.body["oldest_enqueued_at"].is_string());
    assert!(answer.body["last_updated"].is_string());
    assert_eq!(answer.body["health"]["state"], "unhealthy");
    let reasons = answer.body["health"]["reasons"].as_array().unwrap();
    assert_eq!(reasons[0], "the queue is nearly full: 9 of 10");
    assert_eq!(reasons[1], "the oldest has waited 10 minutes");
}

#[tokio::test]
async fn an_action_that_never_ran_has_zeros_and_is_healthy() {
    let api = api();
    let answer = api.get("/api/v1/actions/core.noop/queue-stats").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.body["queue_length"], 0);
    assert_eq!(answer.body["total_enqueued"], 0);
    assert_eq!(answer.body["max_concurrent"], Value::Null);
    assert_eq!(answer.body["last_updated"], Value::Null);
    assert_eq!(
        answer.body["health"],
        json!({"state": "healthy", "reasons": []})
    );
    let missing = api.get("/api/v1/actions/core.gone/queue-stats").await;
    assert_eq!(missing.error(), (404, "UNKNOWN_ACTION", "action_ref"));
}

#[tokio::test]
async fn all_queues_are_judged_by_their_own_bounds() {
    let api = api();
    let answer = api.get("/api/v1/queue-stats").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.body["total"], 1);
    assert_eq!(answer.body["queues"][0]["max_length"], 10);
    assert_eq!(answer.body["queues"][0]["health"]["state"], "unhealthy");
    assert_eq!(
        api.get("/api/v1/queue-stats?limit=0").await.error().2,
        "limit"
    );
}

#[tokio::test]
async fn a_queue_is_judged_by_what_it_inherits() {
    let api = api();
    api.fake.with(|state| {
        state.stats[0].bounds.max_length = None;
        let own = state
            .actions
            .get_mut(&"core.echo".parse().unwrap())
            .unwrap();
        own.spec.policy.queue.max_length = None;
    });
    let shown = async || {
        let one = api.get("/api/v1/actions/core.echo/queue-stats").await.body;
        let all = api.get("/api/v1/queue-stats").await.body["queues"][0].clone();
        for field in ["max_length", "timeout_seconds", "health"] {
            assert_eq!(one[field], all[field], "{field}");
        }
        one
    };
    assert_eq!(shown().await["max_length"], 10_000, "as executors are set");
    for max_length in [9, 8] {
        let queue = json!({"max_length": max_length, "timeout_seconds": 77});
        let document = json!({"action_defaults": {"queue": queue}});
        let applied = api.put("/api/v1/policies/pack/core", &document).await;
        assert_eq!(applied.status, StatusCode::OK, "{applied:?}");
        let queue = shown().await;
        assert_eq!(
            (&queue["max_length"], &queue["timeout_seconds"]),
            (&json!(max_length), &json!(77))
        );
        let full = format!("the queue is full, 9 of {max_length}: what comes is refused");
        let reasons = queue["health"]["reasons"].as_array().unwrap();
        assert!(reasons.contains(&json!(full)), "{queue}");
    }
}

/// A lease that is over is no worker: what has a slot waits for one.
#[tokio::test]
async fn a_queue_whose_pool_has_no_living_worker_says_so() {
    let api = api();
    api.fake
        .with(|state| state.workers = vec![worker(Duration::ZERO)]);
    for path in [
        "/api/v1/actions/core.echo/queue-stats",
        "/api/v1/queue-stats",
    ] {
        let body = api.get(path).await.body;
        let queue = body.get("queues").map_or(&body, |queues| &queues[0]);
        let reasons = queue["health"]["reasons"].as_array().unwrap();
        assert_eq!(
            reasons.last().unwrap(),
            "no worker of the pool \"default\" is alive: 11 wait for one"
        );
    }
}

/// Both listings accuse the queues of the partition whose owner cannot write, and no other.
#[tokio::test]
async fn a_queue_whose_owner_cannot_write_says_so() {
    const PARTITIONS: u16 = 4;
    let mut options = options();
    options.partitions = PARTITIONS;
    let fake = api().fake;
    let api = Api {
        router: router(options, fake.ports(), Router::new()),
        fake,
    };
    let echo = PartitionId::of("core.echo", PARTITIONS);
    let noop = PartitionId::of("core.noop", PARTITIONS);
    assert_ne!(echo, noop);
    let lease = |partition| Lease {
        partition,
        owner: Some(OwnerId::fresh()),
        owner_name: Some("executor-1".to_owned()),
        epoch: Epoch(1),
        remaining: Duration::from_secs(9),
        free_for: Duration::ZERO,
        wanted_owner: None,
        holder: None,
        renewals: 1,
        ttl: Duration::from_secs(10),
        trouble: (partition == echo).then(|| LeaseTrouble {
            since: "2026-11-22T10:00:00Z".parse().unwrap(),
            words: "disk full".to_owned(),
        }),
    };
    api.fake
        .with(|state| state.partition_leases = vec![lease(noop), lease(echo)]);
    for path in [
        "/api/v1/actions/core.echo/queue-stats",
        "/api/v1/queue-stats",
    ] {
        let body = api.get(path).await.body;
        let queue = body.get("queues").map_or(&body, |queues| &queues[0]);
        assert_eq!(queue["health"]["state"], "unhealthy");
        assert_eq!(
            queue["health"]["reasons"][0],
            "nothing has been decided since 2026-11-22T10:00:00Z: disk full"
        );
    }
    let other = api.get("/api/v1/actions/core.noop/queue-stats").await;
    assert_eq!(other.body["health"]["state"], "healthy", "{other:?}");
}

/// The memory of an executor that owns the first action only.
struct Memory;

impl LiveQueues for Memory {
    fn get_queue_stats(&self, action: ActionId) -> Option<QueueStats> {
        let mine = self.get_all_queue_stats();
        mine.into_iter().find(|stats| stats.action_id == action)
    }

    fn get_all_queue_stats(&self) -> Vec<QueueStats> {
        vec![QueueStats {
            action_id: ActionId(1),
            queue_length: 0,
            active_count: 1,
            max_concurrent: Some(2),
            oldest_enqueued_at: None,
            total_enqueued: 21,
            total_completed: 20,
            total_cancelled: 0,
            total_expired: 0,
            lacks_key: None,
        }]
    }
}

#[tokio::test]
async fn a_queue_is_shown_as_it_is_now_where_its_executor_can_be_asked() {
    let snapshot = api();
    let written = Utc::now() - TimeDelta::minutes(30);
    snapshot
        .fake
        .with(|state| state.stats[0].last_updated = written);
    let ports = snapshot
        .fake
        .ports()
        .with_live_queues(Some(Arc::new(Memory)));
    let live = Api {
        router: router(options(), ports, Router::new()),
        fake: snapshot.fake.clone(),
    };
    for path in [
        "/api/v1/actions/core.echo/queue-stats",
        "/api/v1/queue-stats",
    ] {
        let old = snapshot.get(path).await.body;
        let old = old.get("queues").map_or(&old, |queues| &queues[0]);
        assert_eq!(old["queue_length"], 9);
        assert_eq!(old["as_of"], old["last_updated"]);
        assert!(old["age_ms"].as_u64().unwrap() >= 1_800_000, "{old}");
        assert_eq!(old["health"]["state"], "unhealthy");

        let now = live.get(path).await.body;
        let now = now.get("queues").map_or(&now, |queues| &queues[0]);
        assert_eq!(
            (&now["queue_length"], &now["active_count"]),
            (&json!(0), &json!(1))
        );
        assert_eq!(now["age_ms"], 0);
        assert_eq!(now["last_updated"], old["last_updated"]);
        // A run of any length is no fault of its queue.
        assert_eq!(now["health"], json!({"state": "healthy", "reasons": []}));
    }
    let unowned = live.get("/api/v1/actions/core.noop/queue-stats").await.body;
    assert_eq!(unowned["as_of"], Value::Null);
    assert_eq!(unowned["age_ms"], Value::Null);
}

#[tokio::test]
async fn queues_come_in_pages_and_read_no_more_than_they_show() {
    let api = api();
    api.fake.with(|state| {
        let first = state.stats[0].clone();
        for n in 2..=5 {
            let mut other = first.clone();
            other.action_ref = format!("core.n{n}");
            other.stats.action_id = ActionId(n);
            other.stats.queue_length = u64::try_from(n % 3).unwrap();
            state.stats.push(other);
        }
    });
    let (mut seen, mut path) = (Vec::new(), "/api/v1/queue-stats?limit=2".to_owned());
    loop {
        let answer = api.get(&path).await;
        assert_eq!(answer.body["total"], 5);
        let queues = answer.body["queues"].as_array().unwrap();
        seen.extend(queues.iter().map(|it| it["action_id"].as_i64().unwrap()));
        let Some(next) = answer.body["next"].as_str() else {
            break;
        };
        path = format!("/api/v1/queue-stats?limit=2&cursor={next}");
    }
    assert_eq!(seen, [1, 2, 5, 4, 3]);
    let foreign = api.get("/api/v1/queue-stats?cursor=x").await;
    assert_eq!(foreign.error(), (422, "INVALID_INPUT", "cursor"));
    // No action is read for a list: what bounds each queue comes with its row.
    assert_eq!(api.fake.with(|state| state.action_reads), 0);
}

#[tokio::test]
async fn a_queue_that_was_not_written_down_yet_is_listed() {
    let fresh = api();
    fresh.fake.with(|state| state.stats.clear());
    let ports = fresh.fake.ports().with_live_queues(Some(Arc::new(Memory)));
    let live = Api {
        router: router(options(), ports, Router::new()),
        fake: fresh.fake.clone(),
    };
    let submission = json!({"action_ref": "core.echo"}).to_string();
    let accepted = live.post("/api/v1/executions", submission).await;
    assert_eq!(accepted.status, StatusCode::CREATED, "{accepted:?}");
    let answer = live.get("/api/v1/queue-stats").await;
    assert_eq!(answer.body["total"], 1);
    let queue = &answer.body["queues"][0];
    assert_eq!(queue["action_ref"], "core.echo");
    assert_eq!(queue["active_count"], 1);
    assert_eq!(queue["last_updated"], Value::Null);
}
