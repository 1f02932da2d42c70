//! `/api/v1/worker/exchange`.

use std::time::Duration;

use attune_bus::{Bus as _, MemoryBus, Outgoing, PublishError, Subscriber, Subscription, Topic};
use attune_core::{Epoch, OwnerId, PartitionId, WorkerId};
use attune_messages::v2::{Section, WorkerHello, WorkerReport};
use attune_messages::{decode_batch, encode};
use axum::http::StatusCode;
use chrono::Utc;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use crate::harness::{Answer, Api};

const PATH: &str = "/api/v1/worker/exchange";
const MAX: usize = 1 << 20;

/// A worker that speaks HTTP, and the bus behind the API.
struct Http {
    api: Api,
    bus: MemoryBus,
    worker: WorkerId,
}

impl Http {
    fn new() -> Self {
        let api = Api::new();
        let bus = api.fake.with(|state| state.bus.clone());
        Self {
            api,
            bus,
            worker: WorkerId::fresh(),
        }
    }

    fn body(&self, more: &Value) -> Value {
        let mut body = json!({
            "worker": self.worker, "name": "w1", "pool": "default", "slots": 4, "lease_seconds": 60,
        });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    }

    async fn says(&self, more: Value) -> Answer {
        self.api.post(PATH, self.body(&more).to_string()).await
    }

    /// What it hears, which must go well.
    async fn hears(&self, wait_ms: u32) -> Value {
        let answer = self.says(json!({"wait_ms": wait_ms})).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        answer.body
    }

    async fn subscribe(&self, topic: Topic) -> Subscriber {
        let subscription = Subscription {
            topic,
            prefetch: 100,
        };
        self.bus.subscribe(subscription).await.unwrap()
    }

    /// Tells it a section, as an owner would.
    async fn is_told(&self, number: u64) -> Result<(), PublishError> {
        let section = Section {
            worker: self.worker,
            owner: OwnerId(Uuid::nil()),
            partition: PartitionId(0),
            epoch: Epoch(1),
            number,
            sync: Some(Vec::new()),
            sync_after: None,
            sync_to: None,
            settled: Vec::new(),
            grants: Vec::new(),
            cancel: Vec::new(),
            recall: Vec::new(),
        };
        let id = Uuid::now_v7();
        let body = encode(id, Utc::now(), &[section]);
        let message = Outgoing::new(Topic::link("default", self.worker), id, body);
        self.bus.publish(vec![message]).await
    }
}

fn numbers(answer: &Value) -> Vec<u64> {
    let sections = answer["sections"].as_array().unwrap().iter();
    sections
        .map(|section| section["number"].as_u64().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn what_waits_and_what_comes_is_heard_in_its_order() {
    let http = Http::new();
    let mut hellos = http.subscribe(Topic::Hello).await;
    let first = http.hears(0).await;
    assert_eq!(first["lease_expires_in_ms"], 60_000);
    assert_eq!(first["sections"], json!([]));
    let hello = hellos.next().await.unwrap();
    let hello = decode_batch::<WorkerHello>(&hello.body, MAX).unwrap();
    assert_eq!(hello[0].worker, http.worker);
    for number in 0..3 {
        http.is_told(number).await.unwrap();
    }
    let waited = http.hears(0).await;
    assert_eq!(numbers(&waited), [0, 1, 2]);
    assert_eq!(waited["link"], first["link"]);
    let began = Instant::now();
    let telling = async {
        tokio::time::advance(Duration::from_secs(5)).await;
        http.is_told(3).await.unwrap();
    };
    let (came, ()) = tokio::join!(http.hears(20_000), telling);
    assert_eq!(numbers(&came), [3]);
    assert!(began.elapsed() < Duration::from_secs(6));
    // A wait is over in time, and lasts a third of the lease at most.
    let short = http
        .says(json!({"wait_ms": 20_000, "lease_seconds": 3}))
        .await;
    assert_eq!(
        (short.status, &short.body["sections"]),
        (StatusCode::OK, &json!([]))
    );
    assert!(began.elapsed() < Duration::from_secs(8));
}

#[tokio::test(start_paused = true)]
async fn a_later_call_ends_an_earlier_one_and_has_what_comes() {
    let http = Http::new();
    let later = async {
        tokio::task::yield_now().await;
        let waiting = async {
            tokio::time::sleep(Duration::from_millis(10)).await; // poll
            http.is_told(0).await.unwrap();
        };
        tokio::join!(http.hears(20_000), waiting).0
    };
    let (earlier, later) = tokio::join!(http.hears(20_000), later);
    assert_eq!((numbers(&earlier), numbers(&later)), (vec![], vec![0]));
    assert_eq!(earlier["link"], later["link"]);
}

#[tokio::test(start_paused = true)]
async fn a_link_ends_with_whoever_hangs_up_and_the_next_has_another_name() {
    let http = Http::new();
    let first = http.hears(0).await;
    http.is_told(0).await.unwrap();
    let hung_up = tokio::time::timeout(Duration::from_secs(1), http.hears(20_000)).await;
    assert_eq!(numbers(&hung_up.unwrap()), [0]);
    let hung_up = tokio::time::timeout(Duration::from_secs(1), http.hears(20_000)).await;
    assert!(hung_up.is_err());
    // Owners are told that nobody hears it.
    let mut told = http.is_told(1).await;
    while told.is_ok() {
        tokio::task::yield_now().await;
        told = http.is_told(1).await;
    }
    let second = http.hears(0).await;
    assert_ne!(first["link"], second["link"]);
    // So it is with one that asks for nothing any more.
    tokio::time::sleep(Duration::from_secs(11)).await; // poll
    assert!(http.is_told(2).await.is_err());
}

#[tokio::test]
async fn ends_and_reports_are_passed_on() {
    let http = Http::new();
    let (owner, gone) = (OwnerId::fresh(), OwnerId::fresh());
    let mut ends = http.subscribe(Topic::Completed).await;
    let mut reports = http.subscribe(Topic::Reports(owner)).await;
    let end = json!({"execution_id": 256, "attempt": 1, "action_id": 7, "status": "succeeded",
        "result": {"big": 1_234_567_890_123_456_789_u64}});
    let answer = http
        .says(json!({
            "completions": [end, end],
            "reports": [
                // Nobody is there to hear it, which is no error.
                {"owner": gone, "resync": [3]},
                {"owner": owner, "elsewhere": 2, "resync": [0],
                 "returned": [{"execution_id": 512, "attempt": 3, "why": "late"}]},
            ],
        }))
        .await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(
        answer.body,
        json!({"lease_expires_in_ms": 60_000, "sections": []})
    );
    let message: Value = serde_json::from_slice(&ends.next().await.unwrap().body).unwrap();
    let told = message["payload"].as_array().unwrap();
    assert_eq!((told.len(), &told[0]["worker"]), (2, &json!(http.worker)));
    assert_eq!(told[0]["result"], end["result"]);
    let message = reports.next().await.unwrap();
    let report = decode_batch::<WorkerReport>(&message.body, MAX)
        .unwrap()
        .remove(0);
    assert_eq!((report.worker, report.elsewhere), (http.worker, 2));
    assert_eq!(
        (report.returned.len(), report.resync),
        (1, vec![PartitionId(0)])
    );
}

#[tokio::test]
async fn reports_to_one_owner_are_one_message() {
    let http = Http::new();
    let owners = [OwnerId::fresh(), OwnerId::fresh()];
    let mut first = http.subscribe(Topic::Reports(owners[0])).await;
    let mut second = http.subscribe(Topic::Reports(owners[1])).await;
    let reports: Vec<Value> = (0..100)
        .map(|n| json!({"owner": owners[n % 2], "elsewhere": n}))
        .collect();
    let answer = http.says(json!({"reports": reports})).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    for (subscriber, from) in [(&mut first, 0), (&mut second, 1)] {
        let message = subscriber.next().await.unwrap();
        let said = decode_batch::<WorkerReport>(&message.body, MAX).unwrap();
        // In the order in which they were said: the last one counts.
        let elsewhere: Vec<u32> = said.iter().map(|report| report.elsewhere).collect();
        let expected: Vec<u32> = (from..100).step_by(2).collect();
        assert_eq!(elsewhere, expected);
    }
}

#[tokio::test]
async fn reports_to_more_owners_than_there_can_be_are_refused() {
    let http = Http::new();
    let mut reports: Vec<Value> = (0..64)
        .map(|_| json!({"owner": OwnerId::fresh()}))
        .collect();
    reports.push(reports[0].clone());
    let answer = http.says(json!({"reports": reports})).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    reports.push(json!({"owner": OwnerId::fresh()}));
    let answer = http.says(json!({"reports": reports})).await;
    assert_eq!(
        answer.error(),
        (422, "INVALID_INPUT", "reports.65.owner"),
        "{answer:?}"
    );
    assert!(answer.body.to_string().contains("64 owners"), "{answer:?}");
}

#[tokio::test]
async fn ends_that_nobody_keeps_are_to_be_told_again() {
    let http = Http::new();
    let end = json!({"execution_id": 256, "attempt": 1, "action_id": 7, "status": "failed"});
    // No listener has ever been there.
    let answer = http.says(json!({"completions": [end], "wait_ms": 0})).await;
    assert_eq!(answer.error(), (503, "NOT_KEPT", ""));
    http.bus.close().await;
    let answer = http.says(json!({"completions": [end]})).await;
    assert_eq!(answer.error(), (503, "NOT_KEPT", ""));
    let answer = http.says(json!({"wait_ms": 0})).await;
    assert_eq!(answer.error(), (503, "NO_LINK", ""));
}

#[tokio::test]
async fn what_is_wrong_is_named_and_nothing_is_done() {
    let http = Http::new();
    let end = |name: &str, value: Value| {
        let mut end =
            json!({"execution_id": 256, "attempt": 1, "action_id": 7, "status": "failed"});
        end[name] = value;
        json!({"completions": [{"execution_id": 256, "attempt": 1, "action_id": 7, "status": "failed"}, end]})
    };
    let owner = OwnerId::fresh();
    let cases = [
        (json!({"slots": 0}), "slots"),
        (json!({"wait_ms": 20_001}), "wait_ms"),
        (json!({"wait_ms": -1}), "wait_ms"),
        (json!({"wait": 1}), "wait"),
        (end("status", json!("running")), "completions.1.status"),
        (end("status", json!("won")), "completions.1.status"),
        (
            end("execution_id", json!(257)),
            "completions.1.execution_id",
        ),
        (end("execution_id", json!(0)), "completions.1.execution_id"),
        (end("partition", json!(3)), "completions.1.partition"),
        (end("attempt", json!(0)), "completions.1.attempt"),
        (
            end("worker", json!(WorkerId::fresh())),
            "completions.1.worker",
        ),
        (end("exit", json!(1)), "completions.1.exit"),
        (end("stdout", json!("x".repeat(9_700))), "completions.1"),
        (json!({"completions": [7]}), "completions.0"),
        (json!({"reports": [{}]}), "reports.0.owner"),
        (
            json!({"reports": [{"owner": owner, "returned": [{}]}]}),
            "reports.0.returned.0.execution_id",
        ),
        (
            json!({"reports": [{"owner": owner, "worker": owner}]}),
            "reports.0.worker",
        ),
    ];
    for (more, field) in cases {
        let answer = http.says(more).await;
        assert_eq!(answer.error(), (422, "INVALID_INPUT", field), "{answer:?}");
    }
    let none = http.api.fake.with(|state| state.leases.is_empty());
    assert!(none, "a lease was renewed");
    http.api.fake.with(|state| state.leases_expired = true);
    assert_eq!(
        http.says(json!({"wait_ms": 0})).await.error(),
        (409, "LEASE_EXPIRED", "")
    );
}

#[tokio::test]
async fn what_is_wrong_with_an_end_is_told_with_the_way_out() {
    let http = Http::new();
    let said = async |name: &str, value: Value| {
        let mut end =
            json!({"execution_id": 256, "attempt": 1, "action_id": 7, "status": "failed"});
        end[name] = value;
        let answer = http.says(json!({"completions": [end]})).await;
        let field = format!("completions.0.{name}");
        assert_eq!(
            answer.error(),
            (422, "INVALID_INPUT", &*field),
            "{answer:?}"
        );
        answer.body["error"]["message"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        said("partition", json!(3)).await,
        "`partition` is 3, but execution 256 is of partition 0; leave it out"
    );
    assert_eq!(
        said("execution_id", json!(263)).await,
        "`execution_id` is 263, which is of partition 7; the cluster's are counted from 0, and there are 1"
    );
    for status in [json!("Succeeded"), json!("running")] {
        let words = said("status", status).await;
        assert!(
            words.ends_with("expected one of `succeeded`, `failed`, `timed_out`, `cancelled`"),
            "{words}"
        );
    }
}

#[tokio::test]
async fn null_is_no_value() {
    let http = Http::new();
    let owner = OwnerId::fresh();
    let mut reports = http.subscribe(Topic::Reports(owner)).await;
    let nothing = json!({"draining": null, "wait_ms": null, "completions": null, "reports": null});
    let answer = http.says(nothing).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert!(!http.api.fake.with(|state| state.leases[0].draining));
    let report = json!({"owner": owner, "elsewhere": null, "started": null, "resync": null,
        "returned": [{"execution_id": 512, "attempt": 3, "why": null}]});
    let nothing = json!({"owner": owner, "returned": null});
    let answer = http.says(json!({"reports": [report, nothing]})).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let message = reports.next().await.unwrap();
    let said = decode_batch::<WorkerReport>(&message.body, MAX).unwrap();
    let said = said.iter().map(|report| report.returned.len());
    assert_eq!(said.collect::<Vec<_>>(), [1, 0]);
}

#[tokio::test(start_paused = true)]
async fn one_life_too_many_is_refused() {
    let mut http = Http::new();
    for _ in 0..256 {
        http.worker = WorkerId::fresh();
        http.hears(0).await;
    }
    let last = http.worker;
    http.worker = WorkerId::fresh();
    let refused = http.says(json!({"wait_ms": 0})).await;
    assert_eq!(refused.error(), (503, "OVERLOADED", ""));
    http.worker = last;
    http.hears(0).await;
}
