//! What is said of why executions wait, and what is read of it.

use super::*;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 0).unwrap()
}

fn lack(used: u64, ahead: u64, cost: u64) -> Lack {
    Lack {
        capacity: 5,
        used,
        cost,
        ahead,
        holders: Vec::new(),
        more_holders: 0,
        is_shared: false,
    }
}

fn lacks_key(times: u64, name: Option<&str>) -> Reason {
    Reason::Key {
        key: "k1".to_owned(),
        times,
        worker: WorkerId(uuid::Uuid::nil()),
        worker_name: name.map(str::to_owned),
        last_at: at(-5),
        until: Some(at(65)),
    }
}

#[test]
fn who_is_at_a_worker_that_lacks_its_key_waits_for_another() {
    let said: Explanation = serde_json::from_value(serde_json::json!({
        "state": "holds_slot", "attempt": 3, "priority": "normal", "at": at(0),
        "waits_for": [lacks_key(3, Some("blue"))],
    }))
    .unwrap();
    let words = said.words();
    assert!(
        words.starts_with("for a worker with the key \"k1\""),
        "{words}"
    );
    assert!(!words.contains("it keeps its slot"), "{words}");
}

#[test]
fn every_reason_is_said_in_words() {
    let until = at(65);
    for (reason, words) in [
        (Reason::Delayed { until }, "for its time, 1m 5s from now"),
        (
            Reason::Backoff { until },
            "for its next try, 1m 5s from now",
        ),
        (
            Reason::Limit(lack(5, 0, 1)),
            "for a slot: 5 of 5 are taken, it is next",
        ),
        (
            Reason::GroupLimit(lack(1, 3, 2)),
            "for room in its group: 1 of 5 is taken, it takes 2, 3 of its group wait before it; what is free is theirs first",
        ),
        (
            Reason::Limit(lack(4, 1, 2)),
            "for a slot: 4 of 5 are taken, it takes 2, 1 waits before it",
        ),
        (
            Reason::GroupLimit(Lack {
                is_shared: true,
                ..lack(5, 1, 1)
            }),
            "for room in its group: 5 of 5 are taken, 1 of its flow or of higher priority waits before it",
        ),
        (
            Reason::Rate { until, ahead: 2 },
            "for its rate, which allows the next start 1m 5s from now, 2 wait before it",
        ),
        (
            Reason::PoolClosed {
                pool: "gpu".to_owned(),
            },
            "for a free slot of a worker of its pool \"gpu\"",
        ),
        (
            Reason::Paused {
                mode: PauseMode::Drain,
            },
            "for operators to resume its queue, which is draining",
        ),
        (
            Reason::Turn {
                holds: 3,
                weight: 1,
                next_holds: 2,
                next_weight: 4,
                next: Some(ExecutionId(7)),
                in_group: true,
            },
            "for its turn in its group among those of its priority: its flow holds 3 with weight 1, and the one that is next \
             (execution 7) 2 with weight 4",
        ),
        (
            lacks_key(3, Some("blue")),
            "for a worker with the key \"k1\": its workers lack the key that seals its parameters; last given back by \
             worker \"blue\" 5.0s ago, 3 times; its queue rests for 1m 5s",
        ),
        (
            lacks_key(0, None),
            "for its queue, which rests for 1m 5s, because its workers lack the key \"k1\" that seals what stands before \
             it: last given back by worker 00000000-0000-0000-0000-000000000000 5.0s ago",
        ),
    ] {
        assert_eq!(reason.words(at(0), true), words);
    }
    assert_eq!(
        Reason::Limit(lack(5, 0, 1)).words(at(0), false),
        "for a slot: 5 of 5 are taken, those before it wait for room in their groups"
    );
}

#[test]
fn an_estimate_says_what_it_is_based_on() {
    let estimate = Estimate {
        starts_at: at(10),
        earliest: at(7),
        latest: at(14),
        basis: Basis {
            samples: 120,
            mean_ms: 2_000,
            deviation_ms: 500,
            age_ms: 300,
        },
    };
    assert_eq!(
        estimate.words(at(0)),
        "in about 10.0s, in four of five cases 7.0s to 14.0s from now (120 runs of 2.0s ± \
         500ms, the last 300ms ago)"
    );
}

#[test]
fn who_expires_before_it_starts_is_told_so() {
    let basis = Basis {
        samples: 5,
        mean_ms: 1_000,
        deviation_ms: 0,
        age_ms: 0,
    };
    let mut said: Explanation = serde_json::from_value(serde_json::json!({
        "state": "waiting", "attempt": 0, "priority": "normal", "at": at(0), "expires_at": at(60),
    }))
    .unwrap();
    let mut words = |starts: i64| {
        said.estimate = Some(Estimate {
            starts_at: at(starts),
            earliest: at(starts - 1),
            latest: at(starts + 1),
            basis,
        });
        said.estimate_words().unwrap()
    };
    assert!(!words(59).contains("expires"));
    assert!(words(61).ends_with(", but it expires 1m 0s from now"));
}

#[test]
fn what_a_later_release_says_is_read() {
    let reason: Reason =
        serde_json::from_str(r#"{"kind":"rate_limit","window_seconds":60}"#).unwrap();
    assert_eq!(reason, Reason::Other);
    let why: NoEstimate = serde_json::from_str(r#"{"kind":"moon"}"#).unwrap();
    assert_eq!(why, NoEstimate::Other);
    let limit = serde_json::to_value(Reason::Limit(lack(5, 0, 1))).unwrap();
    assert_eq!(
        (&limit["kind"], &limit["used"]),
        (&"limit".into(), &5.into())
    );
}
