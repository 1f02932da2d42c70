//! What operators ask: who holds the slots, who is there, what was done; and taking slots back.

use std::time::Duration;

use attune_core::{Attempt, Epoch, OwnerId, PartitionId, RequestId, Status, WorkerId};
use attune_store::{
    AuditEntry, ExecutorRow, Lease, SlotHolder, SlotWorker, StoredOrigin, Violations, What,
    WorkerRow,
};
use chrono::Utc;
use serde_json::{Value, json};

use crate::fakes::{execution_id, record};
use crate::harness::Api;

fn holder(n: u32, worker: Option<SlotWorker>) -> SlotHolder {
    SlotHolder {
        id: execution_id(n),
        attempt: Attempt(2),
        status: Status::Running,
        requested_at: Some(Utc::now()),
        held_for: Duration::from_millis(1500),
        started_at: None,
        cancel_requested: false,
        worker,
    }
}

#[tokio::test]
async fn holders_come_with_their_workers_and_in_pages() {
    let api = Api::new();
    api.fake.add_action("core.echo", |spec| {
        spec.policy.concurrency.limit = Some(3);
    });
    let worker = SlotWorker {
        id: WorkerId::fresh(),
        name: Some("w-1".to_owned()),
        pool: Some("default".to_owned()),
        seen_ago: Some(Duration::from_millis(700)),
        remaining: Duration::ZERO,
        lost_for: Duration::from_millis(200),
    };
    api.fake.with(|state| {
        state.holders = vec![holder(0, Some(worker)), holder(1, None), holder(2, None)];
    });
    let page = api.get("/api/v1/actions/core.echo/holders?limit=2").await;
    assert_eq!(page.status, 200, "{page:?}");
    assert_eq!(
        (&page.body["limit"], &page.body["next"]),
        (&json!(3), &json!(execution_id(1)))
    );
    let first = &page.body["holders"][0];
    assert_eq!(first["execution_id"], json!(execution_id(0)));
    assert_eq!(
        (&first["attempt"], &first["held_ms"]),
        (&json!(2), &json!(1500))
    );
    let worker = &first["worker"];
    assert_eq!(
        (&worker["name"], &worker["seen_ago_ms"]),
        (&json!("w-1"), &json!(700))
    );
    assert_eq!(
        (&worker["lease_remaining_ms"], &worker["lost_for_ms"]),
        (&json!(0), &json!(200))
    );
    assert_eq!(page.body["holders"][1]["worker"], Value::Null);
    let next = format!(
        "/api/v1/actions/core.echo/holders?after={}",
        execution_id(1)
    );
    let page = api.get(&next).await;
    assert_eq!(page.body["holders"].as_array().unwrap().len(), 1);
    assert_eq!(page.body["next"], Value::Null);
    let gone = api.get("/api/v1/actions/core.gone/holders").await;
    assert_eq!(gone.error(), (404, "UNKNOWN_ACTION", "action_ref"));
}

#[tokio::test]
async fn a_release_names_the_attempt_and_says_why() {
    let api = Api::new();
    let (running, waiting) = (execution_id(1), execution_id(2));
    let worker = WorkerId::fresh();
    api.fake.with(|state| {
        let mut record_of = |n, status| {
            let mut record = record(n, status, 0);
            record.worker = Some(worker);
            state.executions.insert(record.id, record);
        };
        record_of(1, Status::Running);
        record_of(2, Status::Queued);
        record_of(3, Status::Succeeded);
        // It needs nothing of what it was given.
        state.unreadable.push(running);
    });
    let path = |id| format!("/api/v1/executions/{id}/release");
    let answer = api.post(&path(running), r#"{"reason":"hangs"}"#).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        answer.body,
        json!({"id": running, "attempt": 1, "status": "queued"})
    );
    let sent = api.fake.with(|state| state.released.clone());
    assert_eq!(sent.len(), 1);
    assert_eq!(
        (sent[0].execution_id, sent[0].attempt),
        (running, Attempt(1))
    );
    assert_eq!(
        (sent[0].who.as_str(), sent[0].reason.as_str()),
        ("api", "hangs")
    );
    assert_eq!(sent[0].worker, Some(worker));

    for (id, body, error) in [
        (waiting, r#"{"reason":"r"}"#, (409, "ALREADY_ENDED", "")),
        (
            execution_id(3),
            r#"{"reason":"r"}"#,
            (409, "ALREADY_ENDED", ""),
        ),
        (
            running,
            r#"{"reason":"r","attempt":2}"#,
            (409, "ALREADY_ENDED", ""),
        ),
        (
            execution_id(9),
            r#"{"reason":"r"}"#,
            (404, "UNKNOWN_EXECUTION", ""),
        ),
        (
            running,
            r#"{"reason":""}"#,
            (422, "INVALID_INPUT", "reason"),
        ),
        (
            running,
            r#"{"reason":"r","who":""}"#,
            (422, "INVALID_INPUT", "who"),
        ),
        (running, "{}", (422, "INVALID_INPUT", "reason")),
    ] {
        let answer = api.post(&path(id), body).await;
        assert_eq!(
            (answer.error().0, answer.error().1),
            (error.0, error.1),
            "{body}: {answer:?}"
        );
    }
    assert_eq!(api.fake.with(|state| state.released.len()), 1);
}

#[tokio::test]
async fn the_cluster_shows_who_is_there() {
    let api = Api::new();
    let owner = OwnerId::fresh();
    let lease = |n, owned: bool| Lease {
        partition: PartitionId(n),
        owner: owned.then_some(owner),
        owner_name: owned.then(|| "executor-1".to_owned()),
        epoch: Epoch(4),
        remaining: Duration::from_secs(if owned { u64::from(n) + 1 } else { 0 }),
        free_for: Duration::ZERO,
        wanted_owner: None,
        holder: None,
        renewals: 0,
        ttl: Duration::ZERO,
        trouble: None,
    };
    let idle = OwnerId::fresh();
    let row = |executor, name: &str, seconds| ExecutorRow {
        executor,
        name: name.to_owned(),
        remaining: Duration::from_secs(seconds),
        renewals: 0,
        cut_off: executor == idle,
    };
    api.fake.with(|state| {
        state.executors = vec![
            row(owner, "executor-1", 2),
            row(idle, "executor-2", 9),
            row(OwnerId::fresh(), "gone", 0),
        ];
        state.partition_leases = vec![lease(0, true), lease(1, true), lease(2, false)];
        state.workers = vec![WorkerRow {
            worker: WorkerId::fresh(),
            name: "w".to_owned(),
            pool: "default".to_owned(),
            slots: 4,
            remaining: Duration::ZERO,
            seen_ago: None,
            draining: false,
        }];
    });
    let answer = api.get("/api/v1/cluster").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let executors = json!([
        {"id": owner, "name": "executor-1", "partitions": 2, "lease_remaining_ms": 2000, "cut_off": false},
        {"id": idle, "name": "executor-2", "partitions": 0, "lease_remaining_ms": 9000, "cut_off": true},
    ]);
    assert_eq!(answer.body["executors"], executors);
    let partitions = answer.body["partitions"].as_array().unwrap();
    assert_eq!(partitions.len(), 3);
    assert_eq!(
        (&partitions[0]["epoch"], &partitions[2]["owner"]),
        (&json!(4), &Value::Null)
    );
    assert_eq!(answer.body["workers"][0]["alive"], false);
}

#[tokio::test]
async fn violations_make_a_queue_unhealthy_and_the_log_is_read_in_pages() {
    let api = Api::new();
    api.fake.add_action("core.echo", |_| {});
    api.fake.add_action("core.noop", |_| {});
    api.fake.with(|state| {
        state.violations = [What::OrderViolation, What::LimitViolation]
            .map(|kind| Violations {
                action_ref: "core.echo".to_owned(),
                what: kind.name().to_owned(),
                entries: 2,
                last_at: chrono::DateTime::from_timestamp(1_800_000_000, 0).unwrap(),
            })
            .into();
        state.audit = (1..=3)
            .map(|id| AuditEntry {
                id,
                at: Utc::now(),
                who: "ann".to_owned(),
                what: What::ForceRelease.name().to_owned(),
                target: "7".to_owned(),
                reason: None,
                before: None,
                after: None,
                request_id: RequestId::fresh(),
                origin: StoredOrigin {
                    via: Some("amqp".to_owned()),
                    ..StoredOrigin::default()
                },
            })
            .collect();
    });
    let queue = api.get("/api/v1/actions/core.echo/queue-stats").await;
    assert_eq!(queue.body["health"]["state"], "unhealthy");
    assert_eq!(
        queue.body["health"]["reasons"],
        json!([
            "executions were not started in their order: 2 in the audit log, the last at \
             2027-01-15T08:00:00Z",
            "more executions held a slot than the limit allows: 2 in the audit log, the last at \
             2027-01-15T08:00:00Z",
        ])
    );
    let other = api.get("/api/v1/actions/core.noop/queue-stats").await;
    assert_eq!(other.body["health"]["state"], "healthy");

    let page = api.get("/api/v1/audit-log?limit=2").await;
    let ids = |page: &Value| {
        let entries = page["entries"].as_array().unwrap();
        entries
            .iter()
            .map(|it| it["id"].as_i64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (ids(&page.body), &page.body["next"]),
        (vec![3, 2], &json!(2))
    );
    let page = api.get("/api/v1/audit-log?before=2").await;
    assert_eq!(
        (ids(&page.body), &page.body["next"]),
        (vec![1], &Value::Null)
    );
}
