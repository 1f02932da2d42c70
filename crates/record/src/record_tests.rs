use attune_core::policy::TryEnd;
use attune_core::{
    ActionId, Attempt, Epoch, ExecutionId, OrderRule, PartitionId, PauseMode, Priority, RequestId,
    Status, WorkerId,
};
use uuid::Uuid;

use crate::*;

const EXECUTION: ExecutionId = ExecutionId(300);
const ATTEMPT: Attempt = Attempt(2);
const ACTION: ActionId = ActionId(7);
const EPOCH: Epoch = Epoch(4);
const REQUEST: RequestId = RequestId(Uuid::nil());
const WORKER: WorkerId = WorkerId(Uuid::nil());
const NIL: &str = "00000000-0000-0000-0000-000000000000";

/// Checks that a record is written as this object, and read back from it.
fn check(record: &Record, text: &str) {
    let text = text.replace("NIL", NIL);
    assert_eq!(serde_json::to_string(record).unwrap(), text);
    assert_eq!(&serde_json::from_str::<Record>(&text).unwrap(), record);
}

#[test]
fn the_form_of_runs_is_fixed() {
    let (execution_id, attempt, action_id) = (EXECUTION, ATTEMPT, ACTION);
    let start = Record::Start {
        execution_id,
        attempt,
        action_id,
        t_ns: 5,
    };
    check(
        &start,
        r#"{"kind":"start","execution_id":300,"attempt":2,"action_id":7,"t_ns":5}"#,
    );
    let end = |status| Record::End {
        execution_id,
        attempt,
        action_id,
        status,
        t_ns: 6,
    };
    check(
        &end(Some(Status::TimedOut)),
        r#"{"kind":"end","execution_id":300,"attempt":2,"action_id":7,"status":"timed_out","t_ns":6}"#,
    );
    check(
        &end(None),
        r#"{"kind":"end","execution_id":300,"attempt":2,"action_id":7,"t_ns":6}"#,
    );
    let action_ref = "core.noop".to_owned();
    let program = Record::ProgramStart {
        execution_id,
        attempt,
        action_ref: action_ref.clone(),
        pid: 9,
        t_ns: 5,
    };
    check(
        &program,
        r#"{"kind":"program_start","execution_id":300,"attempt":2,"action_ref":"core.noop","pid":9,"t_ns":5}"#,
    );
    let program = Record::ProgramEnd {
        execution_id,
        attempt,
        action_ref,
        pid: 9,
        t_ns: 6,
    };
    check(
        &program,
        r#"{"kind":"program_end","execution_id":300,"attempt":2,"action_ref":"core.noop","pid":9,"t_ns":6}"#,
    );
}

#[test]
fn the_form_of_submissions_is_fixed() {
    let request_id = REQUEST;
    let invoke = Record::SubmitInvoke {
        request_id,
        action_ref: "core.noop".to_owned(),
        priority: Priority::High,
        delayed: false,
        requested_by: None,
        t_ns: 1,
    };
    check(
        &invoke,
        r#"{"kind":"submit_invoke","request_id":"NIL","action_ref":"core.noop","priority":"high","t_ns":1}"#,
    );
    let delayed = Record::SubmitInvoke {
        request_id,
        action_ref: "core.noop".to_owned(),
        priority: Priority::High,
        delayed: true,
        requested_by: Some("ann".to_owned()),
        t_ns: 1,
    };
    check(
        &delayed,
        r#"{"kind":"submit_invoke","request_id":"NIL","action_ref":"core.noop","priority":"high","delayed":true,"requested_by":"ann","t_ns":1}"#,
    );
    let confirmed = Record::Confirmed {
        request_id,
        t_ns: 2,
    };
    check(
        &confirmed,
        r#"{"kind":"confirmed","request_id":"NIL","t_ns":2}"#,
    );
    let ok = Record::SubmitOk {
        request_id,
        execution_id: EXECUTION,
        t_ns: 2,
    };
    check(
        &ok,
        r#"{"kind":"submit_ok","request_id":"NIL","execution_id":300,"t_ns":2}"#,
    );
    let fail = Record::SubmitFail {
        request_id,
        code: "QUEUE_FULL".to_owned(),
        t_ns: 2,
    };
    check(
        &fail,
        r#"{"kind":"submit_fail","request_id":"NIL","code":"QUEUE_FULL","t_ns":2}"#,
    );
    let info = Record::SubmitInfo {
        request_id,
        t_ns: 2,
    };
    check(
        &info,
        r#"{"kind":"submit_info","request_id":"NIL","t_ns":2}"#,
    );
}

#[test]
fn files_from_before_priorities_and_codes_are_still_read() {
    let old = format!(
        r#"{{"kind":"submit_invoke","request_id":"{NIL}","action_ref":"core.noop","t_ns":1}}"#
    );
    let expected = Record::SubmitInvoke {
        request_id: REQUEST,
        action_ref: "core.noop".to_owned(),
        priority: Priority::Normal,
        delayed: false,
        requested_by: None,
        t_ns: 1,
    };
    assert_eq!(serde_json::from_str::<Record>(&old).unwrap(), expected);
    let old = format!(r#"{{"kind":"submit_fail","request_id":"{NIL}","reason":"X","t_ns":1}}"#);
    let expected = Record::SubmitFail {
        request_id: REQUEST,
        code: "X".to_owned(),
        t_ns: 1,
    };
    assert_eq!(serde_json::from_str::<Record>(&old).unwrap(), expected);
}

#[test]
fn the_form_of_ownership_is_fixed() {
    let (partition, epoch, t_ns) = (PartitionId(3), EPOCH, 1);
    check(
        &Record::Acquired {
            partition,
            epoch,
            pid: Some(9),
            t_ns,
        },
        r#"{"kind":"acquired","partition":3,"epoch":4,"pid":9,"t_ns":1}"#,
    );
    check(
        &Record::Lost(OfEpoch {
            partition,
            epoch,
            t_ns,
        }),
        r#"{"kind":"lost","partition":3,"epoch":4,"t_ns":1}"#,
    );
    check(
        &Record::Fenced(OfEpoch {
            partition,
            epoch,
            t_ns,
        }),
        r#"{"kind":"fenced","partition":3,"epoch":4,"t_ns":1}"#,
    );
}

#[test]
fn the_form_of_decisions_is_fixed() {
    let (execution_id, attempt, action_id, epoch) = (EXECUTION, ATTEMPT, ACTION, EPOCH);
    let (round, t_ns) = (8, 9);
    let accepted = |delayed| Record::Accepted {
        execution_id,
        action_id,
        priority: Priority::Low,
        request_id: REQUEST,
        status: Status::Queued,
        delayed,
        at: delayed.then_some(1_700_000_000_000),
        demand: None,
        quotas: Vec::new(),
        epoch,
        round,
        t_ns,
    };
    check(
        &accepted(false),
        r#"{"kind":"accepted","execution_id":300,"action_id":7,"priority":"low","request_id":"NIL","status":"queued","epoch":4,"round":8,"t_ns":9}"#,
    );
    check(
        &accepted(true),
        r#"{"kind":"accepted","execution_id":300,"action_id":7,"priority":"low","request_id":"NIL","status":"queued","delayed":true,"at":1700000000000,"epoch":4,"round":8,"t_ns":9}"#,
    );
    let granted = |limit, order| Record::Granted {
        ahead: false,
        at: None,
        execution_id,
        action_id,
        attempt,
        grant_no: 11,
        limit,
        order,
        group_limit: None,
        demands: None,
        rate: None,
        interval_ms: None,
        weights: None,
        worker: None,
        epoch,
        round,
        t_ns,
    };
    check(
        &granted(Some(5), OrderRule::Priority),
        r#"{"kind":"granted","execution_id":300,"action_id":7,"attempt":2,"grant_no":11,"limit":5,"epoch":4,"round":8,"t_ns":9}"#,
    );
    check(
        &granted(None, OrderRule::Ageing { step: 5_000 }),
        r#"{"kind":"granted","execution_id":300,"action_id":7,"attempt":2,"grant_no":11,"limit":null,"order":{"ageing":{"step":5000}},"epoch":4,"round":8,"t_ns":9}"#,
    );
    let mut shared = granted(Some(5), OrderRule::Priority);
    if let Record::Granted { weights, .. } = &mut shared {
        let of = vec![3, 1];
        *weights = Some(attune_core::policy::FlowWeights { mark: -4, of });
    }
    check(
        &shared,
        r#"{"kind":"granted","execution_id":300,"action_id":7,"attempt":2,"grant_no":11,"limit":5,"weights":{"mark":-4,"of":[3,1]},"epoch":4,"round":8,"t_ns":9}"#,
    );
    let ended = Record::Ended {
        gone: None,
        execution_id,
        action_id,
        attempt,
        status: Status::Succeeded,
        epoch,
        round,
        t_ns,
    };
    check(
        &ended,
        r#"{"kind":"ended","execution_id":300,"action_id":7,"attempt":2,"status":"succeeded","epoch":4,"round":8,"t_ns":9}"#,
    );
    let held = |kept_until| Record::Held {
        ahead: false,
        execution_id,
        action_id,
        attempt,
        kept_until,
        epoch,
        round,
        t_ns,
    };
    check(
        &held(Some(5)),
        r#"{"kind":"held","execution_id":300,"action_id":7,"attempt":2,"kept_until":5,"epoch":4,"round":8,"t_ns":9}"#,
    );
    check(
        &held(None),
        r#"{"kind":"held","execution_id":300,"action_id":7,"attempt":2,"epoch":4,"round":8,"t_ns":9}"#,
    );
    let revoked = |retried| Record::Revoked {
        execution_id,
        action_id,
        attempt,
        retried,
        never_begun: false,
        epoch,
        round,
        t_ns,
    };
    check(
        &revoked(None),
        r#"{"kind":"revoked","execution_id":300,"action_id":7,"attempt":2,"epoch":4,"round":8,"t_ns":9}"#,
    );
    let (end, not_before) = (TryEnd::TimedOut, 1_700_000_000_000);
    let retried = |keeps_slot| Retried {
        end,
        not_before,
        keeps_slot,
    };
    check(
        &revoked(Some(retried(true))),
        r#"{"kind":"revoked","execution_id":300,"action_id":7,"attempt":2,"retried":{"end":"timed_out","not_before":1700000000000,"keeps_slot":true},"epoch":4,"round":8,"t_ns":9}"#,
    );
    check(
        &revoked(Some(retried(false))),
        r#"{"kind":"revoked","execution_id":300,"action_id":7,"attempt":2,"retried":{"end":"timed_out","not_before":1700000000000},"epoch":4,"round":8,"t_ns":9}"#,
    );
    let limit = Record::Limit {
        action_id,
        limit: Some(1),
        group_limit: None,
        demands: None,
        max_length: Some(5),
        epoch,
        round,
        t_ns,
    };
    check(
        &limit,
        r#"{"kind":"limit","action_id":7,"limit":1,"max_length":5,"epoch":4,"round":8,"t_ns":9}"#,
    );
    let totals = Record::Totals {
        action_id,
        enqueued: 9,
        completed: 4,
        cancelled: 1,
        expired: 0,
        waiting: 2,
        active: 2,
        pool_closed: false,
        paused: false,
        regrouping: false,
        goes_on: false,
        rate_until: None,
        epoch,
        round,
        t_ns,
    };
    check(
        &totals,
        r#"{"kind":"totals","action_id":7,"enqueued":9,"completed":4,"cancelled":1,"expired":0,"waiting":2,"active":2,"epoch":4,"round":8,"t_ns":9}"#,
    );
}

#[test]
fn the_form_of_what_surrounds_them_is_fixed() {
    let (execution_id, attempt, worker, t_ns) = (EXECUTION, ATTEMPT, WORKER, 1);
    check(
        &Record::StaleCompletion {
            execution_id,
            attempt,
            t_ns,
        },
        r#"{"kind":"stale_completion","execution_id":300,"attempt":2,"t_ns":1}"#,
    );
    check(
        &Record::Taken {
            execution_id,
            attempt,
            worker,
            pid: Some(9),
            t_ns,
        },
        r#"{"kind":"taken","execution_id":300,"attempt":2,"worker":"NIL","pid":9,"t_ns":1}"#,
    );
    check(
        &Record::WorkerLost { worker, t_ns },
        r#"{"kind":"worker_lost","worker":"NIL","t_ns":1}"#,
    );
    let exit = |executions| Record::ProcessExit {
        pid: 9,
        executions,
        t_ns,
    };
    check(&exit(vec![]), r#"{"kind":"process_exit","pid":9,"t_ns":1}"#);
    check(
        &exit(vec![execution_id]),
        r#"{"kind":"process_exit","pid":9,"executions":[300],"t_ns":1}"#,
    );
    let fault = |phase| Record::Fault {
        name: "pause".to_owned(),
        target: "worker-1".to_owned(),
        phase,
        t_ns,
    };
    check(
        &fault(FaultPhase::Begin),
        r#"{"kind":"fault","name":"pause","target":"worker-1","phase":"begin","t_ns":1}"#,
    );
    check(
        &fault(FaultPhase::End),
        r#"{"kind":"fault","name":"pause","target":"worker-1","phase":"end","t_ns":1}"#,
    );
}

#[test]
fn the_form_of_what_other_processes_see_is_fixed() {
    let (execution_id, attempt, t_ns) = (EXECUTION, ATTEMPT, 1);
    let answered = |http_status, execution_id, code: Option<&str>| Record::Answered {
        request_id: REQUEST,
        http_status,
        execution_id,
        code: code.map(str::to_owned),
        t_ns,
    };
    check(
        &answered(201, Some(execution_id), None),
        r#"{"kind":"answered","request_id":"NIL","http_status":201,"execution_id":300,"t_ns":1}"#,
    );
    check(
        &answered(429, None, Some("QUEUE_FULL")),
        r#"{"kind":"answered","request_id":"NIL","http_status":429,"code":"QUEUE_FULL","t_ns":1}"#,
    );
    check(
        &Record::Forwarded {
            execution_id,
            attempt,
            status: Status::Failed,
            t_ns,
        },
        r#"{"kind":"forwarded","execution_id":300,"attempt":2,"status":"failed","t_ns":1}"#,
    );
    check(
        &Record::DeadLettered {
            reason: "no".to_owned(),
            t_ns,
        },
        r#"{"kind":"dead_lettered","reason":"no","t_ns":1}"#,
    );
    check(
        &Record::StatsWritten {
            action_id: ACTION,
            version: 11,
            enqueued: 6,
            completed: 1,
            cancelled: 2,
            expired: 0,
            waiting: 2,
            active: 1,
            t_ns,
        },
        r#"{"kind":"stats_written","action_id":7,"version":11,"enqueued":6,"completed":1,"cancelled":2,"expired":0,"waiting":2,"active":1,"t_ns":1}"#,
    );
    check(
        &Record::Process {
            role: "api".to_owned(),
            pid: 9,
            phase: ProcessPhase::Stopping,
            t_ns,
        },
        r#"{"kind":"process","role":"api","pid":9,"phase":"stopping","t_ns":1}"#,
    );
    check(
        &Record::Bounds(TimeBounds {
            partitions: 8,
            lease_ttl_ms: 1,
            worker_ttl_ms: 2,
            worker_grace_ms: 3,
            t_ns,
        }),
        r#"{"kind":"bounds","partitions":8,"lease_ttl_ms":1,"worker_ttl_ms":2,"worker_grace_ms":3,"t_ns":1}"#,
    );
}

#[test]
fn a_commit_gives_its_round_and_time() {
    let limit = |round, t_ns| Record::Limit {
        action_id: ACTION,
        limit: None,
        group_limit: None,
        demands: None,
        max_length: None,
        epoch: EPOCH,
        round,
        t_ns,
    };
    assert_eq!(limit(0, 0).committed(3, 5), limit(3, 5));
}

#[test]
fn the_form_of_changes_is_fixed() {
    let invoke = |order| Record::ApplyInvoke {
        apply_id: Uuid::nil(),
        action_ref: "core.noop".to_owned(),
        limit: Some(3),
        order,
        sets_priorities: false,
        inherits_length: false,
        t_ns: 1,
    };
    check(
        &invoke(OrderRule::Fifo),
        r#"{"kind":"apply_invoke","apply_id":"NIL","action_ref":"core.noop","limit":3,"order":"fifo","t_ns":1}"#,
    );
    check(
        &invoke(OrderRule::Priority),
        r#"{"kind":"apply_invoke","apply_id":"NIL","action_ref":"core.noop","limit":3,"t_ns":1}"#,
    );
    let ok = Record::ApplyOk {
        apply_id: Uuid::nil(),
        action_id: ACTION,
        in_force: true,
        t_ns: 2,
    };
    check(
        &ok,
        r#"{"kind":"apply_ok","apply_id":"NIL","action_id":7,"in_force":true,"t_ns":2}"#,
    );
    let pause = |mode| Record::PauseInvoke {
        pause_id: Uuid::nil(),
        scope: "pack".to_owned(),
        target: "core".to_owned(),
        mode,
        t_ns: 3,
    };
    check(
        &pause(Some(PauseMode::Drain)),
        r#"{"kind":"pause_invoke","pause_id":"NIL","scope":"pack","target":"core","mode":"drain","t_ns":3}"#,
    );
    check(
        &pause(None),
        r#"{"kind":"pause_invoke","pause_id":"NIL","scope":"pack","target":"core","mode":null,"t_ns":3}"#,
    );
    let ok = Record::PauseOk {
        pause_id: Uuid::nil(),
        in_force: false,
        t_ns: 4,
    };
    check(
        &ok,
        r#"{"kind":"pause_ok","pause_id":"NIL","in_force":false,"t_ns":4}"#,
    );
}

#[path = "document_tests.rs"]
mod documents;

#[path = "grant_tests.rs"]
mod grants;
