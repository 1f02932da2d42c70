//! Bulk operations, and what is asked of single executions by who answers for the system.

use async_trait::async_trait;
use attune_commands::ClientError;
use attune_core::{
    ExecutionId, OperationFilter, OperationId, OperationKind, PartitionId, Priority, Status,
};
use attune_messages::v1::Accepted;
use attune_record::{Record, Recorder, read_dir};
use attune_store::{
    Depth, MAX_OPEN_OPERATIONS, NewOperation, OperationRecord, OperationStore, StoreError,
};
use chrono::Utc;
use serde_json::{Value, json};

use crate::fakes::{Fake, State, record};
use crate::harness::Api;

#[async_trait]
impl OperationStore for Fake {
    async fn begin_operation(
        &self,
        new: &NewOperation,
    ) -> Result<Option<OperationRecord>, StoreError> {
        self.store(|state| {
            let known = state
                .operations
                .iter()
                .find(|it| it.request_id == new.request_id);
            if let Some(known) = known {
                return Some(known.clone());
            }
            let open = state.operations.iter().filter(|it| !it.is_finished());
            if open.count() >= MAX_OPEN_OPERATIONS as usize {
                return None;
            }
            let record = OperationRecord {
                id: OperationId(state.operations.len() as i64 + 1),
                request_id: new.request_id,
                what: Ok((new.kind, new.filter.clone())),
                who: new.who.name.clone(),
                reason: new.reason.clone(),
                created: Utc::now(),
                partitions: 1,
                finished: 0,
                matched: 0,
                done: 0,
                skipped: 0,
            };
            state.operations.push(record.clone());
            Some(record)
        })
    }

    async fn find_operation(&self, id: OperationId) -> Result<Option<OperationRecord>, StoreError> {
        if self.with(|state| state.unreadable_operations) {
            return Err(StoreError::Unavailable("it is away".into()));
        }
        self.store(|state| state.operations.iter().find(|it| it.id == id).cloned())
    }

    async fn list_operations(
        &self,
        before: Option<OperationId>,
        limit: u32,
    ) -> Result<Vec<OperationRecord>, StoreError> {
        self.store(|state| {
            let found = state.operations.iter().rev();
            let found = found.filter(|it| before.is_none_or(|before| it.id < before));
            found.take(limit as usize).cloned().collect()
        })
    }

    async fn count_meant(
        &self,
        _kind: OperationKind,
        filter: &OperationFilter,
    ) -> Result<u64, StoreError> {
        self.store(|state| state.meant(filter).len() as u64)
    }

    async fn depth(&self) -> Result<Depth, StoreError> {
        Ok(Depth {
            waiting: vec![(Priority::Critical, 2), (Priority::Low, 3)],
            active: 4,
        })
    }
}

impl State {
    fn meant(&self, filter: &OperationFilter) -> Vec<ExecutionId> {
        let waiting = self.executions.values();
        let waiting = waiting.filter(|it| it.status == Status::Queued);
        let meant = waiting.filter(|it| filter.admits(it.id, it.priority));
        meant.map(|it| it.id).collect()
    }

    /// As owners do that hear of operations.
    pub(crate) fn carry_out(
        &mut self,
        partitions: &[PartitionId],
    ) -> Vec<Result<Accepted, ClientError>> {
        if self.no_owner {
            let unroutable = |id: &PartitionId| Err(ClientError::Unroutable(*id));
            return partitions.iter().map(unroutable).collect();
        }
        let mut operations = std::mem::take(&mut self.operations);
        for record in operations.iter_mut().filter(|it| !it.is_finished()) {
            let Ok((kind, filter)) = record.what.clone() else {
                continue;
            };
            let meant = self.meant(&filter);
            record.matched = meant.len() as u64;
            for id in meant {
                let execution = self.executions.get_mut(&id).unwrap();
                let is_done = match kind {
                    OperationKind::Reprioritise { priority } => {
                        std::mem::replace(&mut execution.priority, priority) != priority
                    }
                    _ => true,
                };
                *if is_done {
                    &mut record.done
                } else {
                    &mut record.skipped
                } += 1;
            }
            record.finished = 1;
        }
        self.operations = operations;
        let accepted = Accepted {
            execution_id: None,
            status: None,
            position: None,
            priority: None,
            repeated: false,
            explanation: None,
        };
        partitions.iter().map(|_| Ok(accepted.clone())).collect()
    }
}

async fn post(api: &Api, path: &str, body: &Value) -> crate::harness::Answer {
    api.post(path, body.to_string()).await
}

/// One that waits.
fn waiting(api: &Api, n: u32) -> i64 {
    let waiting = record(n, Status::Queued, 5);
    let id = waiting.id;
    api.fake.with(|state| state.executions.insert(id, waiting));
    id.0
}

const OPERATIONS: &str = "/api/v1/operations";

#[tokio::test]
async fn an_operation_is_stored_carried_out_and_shown() {
    let api = Api::new();
    api.fake.add_action("core.echo", |_| {});
    for n in 0..3 {
        waiting(&api, n);
    }
    let asked = json!({"kind": "reprioritise", "priority": "high", "filter": {"all": true},
                       "who": "ann", "reason": "they are late"});
    let preview = post(&api, "/api/v1/operations/preview", &asked).await;
    assert_eq!(
        (preview.status.as_u16(), &preview.body),
        (200, &json!({"matched": 3}))
    );
    assert!(
        api.fake.with(|state| state.operations.is_empty()),
        "nothing is done"
    );
    let answer = post(&api, OPERATIONS, &asked).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = &answer.body;
    assert_eq!(
        (&body["state"], &body["done"], &body["who"]),
        (&json!("done"), &json!(3), &json!("ann"))
    );
    let shown = api.get("/api/v1/operations/1").await;
    assert_eq!(shown.body, *body);
    let list = api.get("/api/v1/operations?limit=1").await;
    assert_eq!(list.body["operations"], json!([body]));
    let none = api.get("/api/v1/operations/9").await;
    assert_eq!(none.status, 404);
    assert_eq!(
        api.get("/api/v1/operations/x").await.error(),
        (422, "INVALID_INPUT", "id")
    );
}

#[tokio::test]
async fn a_request_id_names_one_operation() {
    let api = Api::new();
    let id = "0198c1f0-5a00-7000-8000-000000000007";
    let asked = json!({"kind": "clear", "filter": {"all": true}, "request_id": id});
    api.fake.add_action("core.echo", |_| {});
    let first = post(&api, OPERATIONS, &asked).await;
    let again = post(&api, OPERATIONS, &asked).await;
    assert_eq!(first.body["id"], again.body["id"]);
    let other = json!({"kind": "clear", "filter": {"pack": "core"}, "request_id": id});
    assert_eq!(post(&api, OPERATIONS, &other).await.error().1, "CONFLICT");
}

#[tokio::test(start_paused = true)]
async fn one_that_nobody_has_finished_in_time_is_told_with_its_number() {
    let api = Api::new();
    api.fake.with(|state| state.no_owner = true);
    let asked = json!({"kind": "move_to_front", "filter": {"user": "ann"}});
    let answer = post(&api, OPERATIONS, &asked).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body["id"]),
        (202, &json!(1))
    );
    assert_eq!(answer.body["state"], "running");
}

#[tokio::test(start_paused = true)]
async fn one_that_is_stored_is_told_although_nothing_can_be_read_any_more() {
    let api = Api::new();
    api.fake.with(|state| {
        state.no_owner = true;
        state.unreadable_operations = true;
    });
    let asked = json!({"kind": "cancel", "filter": {"user": "ann"}});
    let answer = post(&api, OPERATIONS, &asked).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body["id"]),
        (202, &json!(1)),
        "{answer:?}"
    );
}

#[tokio::test]
async fn bad_input_is_refused_with_its_field_and_nothing_is_stored() {
    let api = Api::new();
    for (body, field) in [
        (json!({"kind": "cancel", "filter": {}}), "filter"),
        (
            json!({"kind": "cancel", "filter": {"all": true, "user": "a"}}),
            "filter.all",
        ),
        (
            json!({"kind": "cancel", "filter": {"action": "echo"}}),
            "filter.action",
        ),
        (
            json!({"kind": "cancel", "filter": {"pack": "core.echo"}}),
            "filter.pack",
        ),
        (
            json!({"kind": "cancel", "filter": {"action": "core.nobody"}}),
            "filter.action",
        ),
        (
            json!({"kind": "cancel", "filter": {"pack": "nobody"}}),
            "filter.pack",
        ),
        (json!({"kind": "unknown", "filter": {"all": true}}), "kind"),
        (
            json!({"kind": "cancel", "filter": {"user": ""}}),
            "filter.user",
        ),
        (
            json!({"kind": "cancel", "filter": {"ids": [0]}}),
            "filter.ids",
        ),
        (
            json!({"kind": "clear", "filter": {"user": "ann"}}),
            "filter.user",
        ),
        (
            json!({"kind": "reprioritise", "filter": {"all": true}}),
            "priority",
        ),
        (
            json!({"kind": "cancel", "priority": "low", "filter": {"all": true}}),
            "priority",
        ),
        (
            json!({"kind": "clear", "include_running": true, "filter": {"all": true}}),
            "include_running",
        ),
        (
            json!({"kind": "cancel", "filter": {"all": true}, "reason": ""}),
            "reason",
        ),
    ] {
        for path in [OPERATIONS, "/api/v1/operations/preview"] {
            let answer = post(&api, path, &body).await;
            assert_eq!(answer.error(), (422, "INVALID_INPUT", field), "{body}");
        }
    }
    for body in [
        json!({"kind": "stop", "filter": {"all": true}}),
        json!({"kind": "cancel", "filter": {"everything": true}}),
        json!({"kind": "cancel", "filter": {"priority": "urgent"}}),
        json!({"filter": {"all": true}}),
    ] {
        assert_eq!(post(&api, OPERATIONS, &body).await.status, 422, "{body}");
    }
    assert!(api.fake.with(|state| state.operations.is_empty()));
}

#[tokio::test]
async fn an_action_and_a_pack_that_there_is_none_of_are_named_with_what_there_is() {
    let api = Api::new();
    api.fake.add_action("core.echo", |_| {});
    api.fake.add_action("shop.greet", |_| {});
    let words = |answer: crate::harness::Answer| {
        let message = answer.body["error"]["message"].as_str();
        message.unwrap_or_default().to_owned()
    };
    let asked = json!({"kind": "clear", "filter": {"pack": "shp"}});
    let said = words(post(&api, OPERATIONS, &asked).await);
    assert!(
        said.contains("`shp`") && said.contains("core, shop"),
        "{said}"
    );
    let asked = json!({"kind": "clear", "filter": {"action": "shop.gret"}});
    let said = words(post(&api, OPERATIONS, &asked).await);
    assert!(said.contains("`shop.gret`"), "{said}");
    for filter in [json!({"pack": "shop"}), json!({"action": "shop.greet"})] {
        let asked = json!({"kind": "clear", "filter": filter});
        assert_eq!(post(&api, OPERATIONS, &asked).await.status, 200);
    }
}

#[tokio::test]
async fn one_that_is_not_known_is_shown_as_unknown_beside_the_others() {
    let api = Api::new();
    api.fake.add_action("core.echo", |_| {});
    let asked = json!({"kind": "clear", "filter": {"all": true}});
    for _ in 0..2 {
        post(&api, OPERATIONS, &asked).await;
    }
    api.fake.with(|state| {
        state.operations[0].what = Err("an operation `rewind` is not known".to_owned());
    });
    let list = api.get("/api/v1/operations").await;
    let kinds = [
        &list.body["operations"][0]["kind"],
        &list.body["operations"][1]["kind"],
    ];
    assert_eq!(kinds, [&json!("clear"), &json!("unknown")]);
    let said = &list.body["operations"][1]["unknown"];
    assert_eq!(said, &json!("an operation `rewind` is not known"));
    assert_eq!(
        api.get("/api/v1/operations/1").await.body["kind"],
        "unknown"
    );
}

#[tokio::test(start_paused = true)]
async fn more_than_may_be_open_are_refused_until_some_are_over() {
    let api = Api::new();
    let asked = json!({"kind": "clear", "filter": {"all": true}});
    post(&api, OPERATIONS, &asked).await;
    api.fake.with(|state| {
        let mut open = state.operations[0].clone();
        open.finished = 0;
        let many = 0..i64::from(MAX_OPEN_OPERATIONS);
        state.operations = many
            .map(|id| OperationRecord {
                id: OperationId(id),
                ..open.clone()
            })
            .collect();
        state.no_owner = true;
    });
    let refused = post(&api, OPERATIONS, &asked).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(refused.body["error"]["code"], "TOO_MANY_OPERATIONS");
    assert_eq!(refused.body["error"]["retry_after_seconds"], 1);
    api.fake.with(|state| state.operations[7].finished = 1);
    assert_eq!(post(&api, OPERATIONS, &asked).await.status, 202);
}

#[tokio::test]
async fn one_execution_gets_another_priority_while_it_waits() {
    let api = Api::new();
    api.fake.add_action("core.echo", |_| {});
    let id = waiting(&api, 1);
    let path = format!("/api/v1/admin/executions/{id}/priority");
    let high = json!({"priority": "high", "who": "ann"});
    // The second time it has it already.
    for _ in 0..2 {
        let answer = api.put(&path, &high).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(
            (&answer.body["priority"], &answer.body["status"]),
            (&json!("high"), &json!("queued"))
        );
    }
    assert_eq!(
        api.put(&path, &json!({"priority": "urgent"})).await.status,
        422
    );
    api.fake.with(|state| {
        let execution = state.executions.get_mut(&ExecutionId(id)).unwrap();
        execution.status = Status::Running;
    });
    let answer = api.put(&path, &high).await;
    assert_eq!(
        (answer.status.as_u16(), answer.error().1),
        (409, "NOT_WAITING")
    );
    let unknown = api
        .put("/api/v1/admin/executions/999999/priority", &high)
        .await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn all_queues_together_are_shown_by_priority() {
    let api = Api::new();
    let queue = api.get("/api/v1/admin/executions/queue").await;
    let expected = json!({
        "depth": 5, "active": 4, "max_concurrent": null,
        "by_priority": {"critical": 2, "high": 0, "normal": 0, "low": 3, "background": 0}
    });
    assert_eq!((queue.status.as_u16(), &queue.body), (200, &expected));
    let list = api
        .get("/api/v1/admin/executions/?status=queued&priority=high,low&user=ann")
        .await;
    assert_eq!(
        (list.status.as_u16(), &list.body["executions"]),
        (200, &json!([]))
    );
    let wrong = api.get("/api/v1/admin/executions/?action=core.echo").await;
    assert_eq!(wrong.status, 422);
}

#[tokio::test]
async fn what_is_asked_and_told_is_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(dir.path(), "api").unwrap();
    let api = Api::recording(recorder.clone());
    let asked = json!({"kind": "clear", "filter": {"all": true}});
    post(&api, OPERATIONS, &asked).await;
    recorder.flush().unwrap();
    let records: Vec<Record> = read_dir(dir.path()).unwrap().map(Result::unwrap).collect();
    let asked = records
        .iter()
        .any(|it| matches!(it, Record::OperationAsked(_)));
    let told = records
        .iter()
        .any(|it| matches!(it, Record::OperationTold(_)));
    assert!(asked && told, "{records:?}");
}
