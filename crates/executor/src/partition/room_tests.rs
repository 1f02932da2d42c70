//! Tests of how much a step does: much that is due at once takes its time and stops nobody else.

use std::collections::BTreeMap;

use attune_core::{ActionSpec, Priority, Seq};

use super::test_world::{CLUSTER, PARTITION, WORKER, action, roster};
use super::*;
use crate::queue::QueueConfig;

/// How many wait for the time 100, in each of these actions.
fn due(counts: &[(i64, u32)], limit: Option<u32>) -> Partition {
    let config = QueueConfig {
        max_queue_length: u32::MAX,
        queue_timeout_seconds: 60,
    };
    let queues = ExecutionQueueManager::new(config);
    let mut partition = Partition::new(PARTITION, Epoch(1), CLUSTER, queues, roster());
    partition.keep_log();
    let actions = counts.iter().map(|(n, _)| {
        let mut action = action(limit);
        action.id = ActionId(*n);
        action.spec = ActionSpec {
            action_ref: format!("test.a{n}").parse().unwrap(),
            ..action.spec
        };
        action
    });
    let actions = actions.collect();
    partition.step(
        0,
        Event::Recover {
            actions,
            totals: vec![],
            sets: crate::stored::Sets::default(),
        },
    );
    let mut place = 0;
    let rows = counts.iter().flat_map(|(n, count)| {
        let places = place..place + count;
        place += count;
        places.map(|place| row(*n, place, Some(100)))
    });
    let rows = rows.collect();
    partition.step(0, Event::RecoverRows(rows));
    // The queues as they were loaded are looked at first.
    partition.step(0, Event::Tick);
    partition
}

fn row(action: i64, place: u32, not_before: Option<Millis>) -> StoredExecution {
    StoredExecution {
        front: false,
        id: ExecutionId::new(PARTITION, Seq::new(Epoch(1), place)),
        action_id: ActionId(action),
        priority: Priority::Normal,
        status: Status::Queued,
        attempt: Attempt(0),
        grant_no: None,
        unbegun: 0,
        retried: false,
        created: 0,
        not_before,
        cancel_requested: false,
        demand: None,
        asker: None,
        kept_until: None,
        worker: None,
    }
}

/// How many of each action are granted a slot by one event.
fn granted(partition: &mut Partition, now: Millis, event: Event) -> BTreeMap<i64, usize> {
    let mut granted = BTreeMap::new();
    for effect in partition.step(now, event) {
        if let Effect::Dispatch(grantee) = effect {
            *granted.entry(grantee.action.id.0).or_default() += 1;
        }
    }
    granted
}

#[test]
fn a_step_has_a_bound_over_all_queues_and_each_has_its_turn() {
    let mut partition = due(&[(1, 2_500), (2, 2_500), (3, 5)], None);
    let mut steps = Vec::new();
    while partition.next_deadline().is_some_and(|time| time <= 100) {
        let step = granted(&mut partition, 100, Event::Tick);
        assert!(step.values().sum::<usize>() <= STEP_ITEMS, "{step:?}");
        steps.push(step);
        assert!(steps.len() < 20, "it has an end: {steps:?}");
    }
    let of = |action: i64| -> Vec<usize> {
        let steps = steps.iter();
        steps
            .map(|step| step.get(&action).copied().unwrap_or(0))
            .collect()
    };
    assert_eq!(of(1).iter().sum::<usize>(), 2_500);
    assert_eq!(of(2).iter().sum::<usize>(), 2_500);
    // Whoever stands behind a queue with much to do has its turn at the next step, to be woken and to be
    // granted slots, of which there are none before all that are due are awake.
    assert_eq!(of(1), [0, 0, 0, 0, 1_000, 0, 1_000, 0, 500]);
    assert_eq!(of(2), [0, 0, 0, 0, 0, 1_000, 0, 1_000, 500]);
    assert_eq!(of(3), [0, 0, 5, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_slot_that_comes_free_is_handed_on_whatever_else_is_due() {
    let mut partition = due(&[(1, 5_000), (2, 0)], Some(1));
    // One of the other action runs, and one waits.
    let mut running = row(2, 6_000, None);
    running.status = Status::Running;
    running.attempt = Attempt(1);
    running.worker = Some(WORKER);
    let id = running.id;
    let rows = vec![running, row(2, 6_001, None)];
    partition.step(0, Event::RecoverRows(rows));
    assert_eq!(
        granted(&mut partition, 100, Event::Tick),
        [].into(),
        "the room of the round is used up by wakes, and others are due that may stand before them"
    );
    let completion = Completion {
        execution_id: id,
        attempt: Attempt(1),
        // Whatever it names: the execution says which slot it is.
        action_id: ActionId(1),
        outcome: Arc::new(attune_core::Outcome::succeeded(None)),
        worker: WORKER,
        user: None,
        ran: None,
    };
    let step = granted(&mut partition, 100, Event::Completed(completion));
    assert_eq!(step, [(2, 1)].into());
}

#[test]
fn a_queue_with_more_to_do_says_that_it_goes_on() {
    let mut partition = due(&[(1, 1_500)], None);
    partition.take_log();
    for (granted, rest) in [(0, true), (1_000, true), (500, false)] {
        partition.step(100, Event::Tick);
        partition.note_totals(ActionId(1));
        let facts = partition.take_log().unwrap().facts;
        let grants = facts
            .iter()
            .filter(|fact| matches!(fact, Fact::Granted { .. }));
        assert_eq!(grants.count(), granted);
        let said = |fact: &Fact| match fact {
            Fact::Totals { goes_on, .. } => Some(*goes_on),
            _ => None,
        };
        assert_eq!(facts.iter().find_map(said), Some(rest));
    }
}

#[test]
fn who_is_due_is_not_passed_while_others_are_woken() {
    let mut partition = due(&[(1, 1_000), (2, 0)], Some(1));
    let mut running = row(2, 6_000, None);
    running.status = Status::Running;
    running.attempt = Attempt(1);
    running.worker = Some(WORKER);
    let id = running.id;
    let mut retry = row(2, 6_001, Some(100));
    retry.attempt = Attempt(1);
    retry.retried = true;
    let (first, second) = (retry.id, row(2, 6_002, None).id);
    partition.step(
        0,
        Event::RecoverRows(vec![running, retry, row(2, 6_002, None)]),
    );
    partition.step(0, Event::Tick);
    partition.step(5_000, Event::Tick);
    let completion = Completion {
        execution_id: id,
        attempt: Attempt(1),
        action_id: ActionId(2),
        outcome: std::sync::Arc::new(attune_core::Outcome::succeeded(None)),
        worker: WORKER,
        user: None,
        ran: None,
    };
    let mut effects = partition.step(5_000, Event::Completed(completion));
    effects.extend(partition.step(5_000, Event::Tick));
    let got: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Dispatch(grantee) => Some(grantee.execution_id),
            _ => None,
        })
        .collect();
    assert_eq!(got, [first], "not {second}");
}

#[test]
fn the_first_of_many_that_are_due_is_granted_first() {
    // 3,000 delayed starts due at 100; the very first in order is a retry due at 101. All due at 200.
    let mut partition = due(&[(1, 0)], Some(1));
    let mut rows = vec![row(1, 0, Some(101))];
    rows[0].attempt = Attempt(1);
    rows[0].retried = true;
    rows.extend((1..=3_000).map(|place| row(1, place, Some(100))));
    let first = rows[0].id;
    partition.step(0, Event::RecoverRows(rows));
    partition.step(0, Event::Tick);
    let mut effects = Vec::new();
    for _ in 0..4 {
        effects.extend(partition.step(200, Event::Tick));
    }
    let got: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Dispatch(grantee) => Some(grantee.execution_id),
            _ => None,
        })
        .collect();
    assert_eq!(got, [first]);
}

/// Who is granted a slot, and how many end, by one round that may end `expiries`.
fn served(partition: &mut Partition, expiries: usize) -> (Vec<ExecutionId>, usize) {
    partition.bound_steps(STEP_ITEMS, expiries, STEP_ITEMS);
    let effects = partition.step(61_000, Event::Tick);
    let granted = effects.iter().filter_map(|effect| match effect {
        Effect::Dispatch(grantee) => Some(grantee.execution_id),
        _ => None,
    });
    let ended = effects.iter().filter(|it| matches!(it, Effect::End(_)));
    (granted.collect(), ended.count())
}

/// Three slots are free. Of two actions many have waited too long; of the first somebody of a higher
/// priority has not, and somebody of the same, and of the second only somebody behind all of them.
#[test]
fn many_who_have_waited_too_long_hold_up_nobody_who_stands_before_them() {
    let mut partition = due(&[(1, 0), (2, 0)], Some(3));
    let expired = (0..40).map(|place| row(1, place, None));
    let mut rows: Vec<_> = expired.collect();
    rows.extend((40..80).map(|place| row(2, place, None)));
    let late = |action, place, priority| {
        let mut row = row(action, place, None);
        (row.created, row.priority) = (60_000, priority);
        row
    };
    let high = late(1, 100, Priority::High);
    let behind = [
        late(1, 101, Priority::Normal),
        late(2, 102, Priority::Normal),
    ];
    let (first, last) = (high.id, behind.each_ref().map(|row| row.id));
    rows.push(high);
    rows.extend(behind);
    partition.step(60_500, Event::RecoverRows(rows));
    assert_eq!(served(&mut partition, 16), (vec![first], 16));
    let (mut granted, mut ended) = (Vec::new(), 16);
    for _ in 0..4 {
        let (more, ends) = served(&mut partition, 16);
        granted.extend(more);
        ended += ends;
    }
    granted.sort_unstable();
    assert_eq!((granted, ended), (last.to_vec(), 80));
}
