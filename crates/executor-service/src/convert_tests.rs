//! Tests of what is converted.

use attune_core::{ActionId, Attempt, ExecutionId, Status};

use super::*;

/// By a worker whose clock was set meanwhile, or that says anything: a time of the store stays one.
#[test]
fn what_a_worker_says_of_a_long_run_is_bounded() {
    let at = |text: &str| text.parse::<DateTime<Utc>>().expect("a time");
    for (from, to, ran) in [
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01.5Z", 1_500),
        ("2026-01-01T00:00:01Z", "2026-01-01T00:00:00Z", 0),
        ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", LONGEST_RUN),
    ] {
        let item = v1::Completion {
            execution_id: ExecutionId(1),
            attempt: Attempt(1),
            action_id: ActionId(1),
            status: Status::Succeeded,
            result: None,
            error: None,
            code: None,
            exit_code: None,
            stdout: None,
            stderr: None,
            partition: None,
            worker: Some(WorkerId::fresh()),
            broker_user: None,
            started_at: Some(at(from)),
            finished_at: Some(at(to)),
        };
        assert_eq!(
            completion(item).expect("its worker is known").ran,
            Some(ran)
        );
    }
    let worker = WorkerId::fresh();
    let started = [5, u64::MAX].map(|age_ms| v2::StartedGrant {
        execution_id: ExecutionId(1),
        attempt: Attempt(1),
        age_ms,
    });
    let said = report(
        v2::WorkerReport {
            worker,
            elsewhere: 0,
            returned: Vec::new(),
            started: started.into(),
            resync: Vec::new(),
        },
        None,
    );
    let ages: Vec<Millis> = said.started.iter().map(|(_, age)| *age).collect();
    assert_eq!(ages, [5, LONGEST_RUN]);
}
