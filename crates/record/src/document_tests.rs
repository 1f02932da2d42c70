//! The form of records about policy documents.

use super::*;

#[test]
fn what_is_recorded_of_policies_is_read_back() {
    check(
        &Record::Policy(PolicyInForce {
            partition: PartitionId(3),
            set_version: 7,
            epoch: EPOCH,
            round: 9,
            t_ns: 5,
        }),
        r#"{"kind":"policy","partition":3,"set_version":7,"epoch":4,"round":9,"t_ns":5}"#,
    );
    check(
        &Record::Policies(PolicyChange::Asked {
            policy_id: Uuid::nil(),
            targets: vec!["global".to_owned(), "pack core".to_owned()],
            says: Vec::new(),
            t_ns: 5,
        }),
        r#"{"kind":"policies","phase":"asked","policy_id":"NIL","targets":["global","pack core"],"t_ns":5}"#,
    );
    check(
        &Record::Policies(PolicyChange::Asked {
            policy_id: Uuid::nil(),
            targets: vec!["user ann".to_owned(), "user bob".to_owned()],
            says: vec![Some(serde_json::json!({"tier": "gold"})), None],
            t_ns: 5,
        }),
        r#"{"kind":"policies","phase":"asked","policy_id":"NIL","targets":["user ann","user bob"],"says":[{"tier":"gold"},null],"t_ns":5}"#,
    );
    check(
        &Record::Policies(PolicyChange::Told {
            policy_id: Uuid::nil(),
            set_version: 7,
            in_force: true,
            t_ns: 5,
        }),
        r#"{"kind":"policies","phase":"told","policy_id":"NIL","set_version":7,"in_force":true,"t_ns":5}"#,
    );
}
