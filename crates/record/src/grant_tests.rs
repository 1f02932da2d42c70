//! The form of records about who may begin an attempt, and about what never began.

use super::*;

fn granted(worker: Option<WorkerId>) -> Record {
    Record::Granted {
        ahead: false,
        execution_id: EXECUTION,
        action_id: ACTION,
        attempt: ATTEMPT,
        grant_no: 11,
        limit: Some(5),
        order: OrderRule::Priority,
        group_limit: None,
        demands: None,
        rate: None,
        interval_ms: None,
        weights: None,
        at: Some(3),
        worker,
        epoch: EPOCH,
        round: 8,
        t_ns: 9,
    }
}

#[test]
fn a_grant_names_who_may_begin() {
    check(
        &granted(Some(WORKER)),
        r#"{"kind":"granted","execution_id":300,"action_id":7,"attempt":2,"grant_no":11,"limit":5,"at":3,"worker":"NIL","epoch":4,"round":8,"t_ns":9}"#,
    );
    check(
        &granted(None),
        r#"{"kind":"granted","execution_id":300,"action_id":7,"attempt":2,"grant_no":11,"limit":5,"at":3,"epoch":4,"round":8,"t_ns":9}"#,
    );
}

#[test]
fn what_never_began_is_told_from_what_did() {
    check(
        &Record::Revoked {
            execution_id: EXECUTION,
            action_id: ACTION,
            attempt: ATTEMPT,
            retried: None,
            never_begun: true,
            epoch: EPOCH,
            round: 8,
            t_ns: 9,
        },
        r#"{"kind":"revoked","execution_id":300,"action_id":7,"attempt":2,"never_begun":true,"epoch":4,"round":8,"t_ns":9}"#,
    );
}

/// Claims are over: what an earlier release recorded of them says nothing any more.
#[test]
fn a_claim_of_an_earlier_release_is_read_as_unknown() {
    let claim =
        r#"{"kind":"claimed","execution_id":300,"attempt":2,"worker":"NIL","pid":9,"t_ns":1}"#;
    let claim = claim.replace("NIL", NIL);
    let record: Record = serde_json::from_str(&claim).unwrap();
    assert_eq!(record, Record::Unknown);
}
