//! Tests of what is told of what happens.

use std::sync::Arc;

use attune_core::policy::{Backoff, Events, Factor, OnFull, OnLimit, Retry};
use attune_core::{
    Operation, OperationFilter, OperationId, OperationKind, OperationProgress, Outcome, OwnerId,
    PartOfOperation, PauseMode, PauseTarget, Pauses, RejectCode,
};

use super::super::test_world::{PARTITION, World, action, cancel, completed, completion};
use super::super::{Event, OnReject, Submit};
use super::*;
use crate::owner::DeliveryId;
use crate::round::Draft;

fn told(world: &mut World, event: Event) -> Vec<Happened> {
    let effects = world.step(event);
    let events = effects.into_iter().filter_map(|effect| match effect {
        Effect::Event(event) => Some(*event),
        _ => None,
    });
    events
        .map(|event| {
            assert_eq!(
                (event.at, event.action_ref.as_str()),
                (world.now, "core.noop")
            );
            event.what
        })
        .collect()
}

/// One slot, one that waits, and another try of what fails.
fn telling(events: Events, limit: u32, version: i64) -> Event {
    let mut action = action(Some(limit));
    action.version = version;
    action.spec.max_attempts = None;
    let policy = &mut action.spec.policy;
    policy.events = events;
    policy.queue.max_length = Some(1);
    policy.queue.on_full = Some(OnFull::DropOldest);
    policy.retry = Some(Retry {
        max_attempts: Some(2),
        backoff: Backoff {
            initial_ms: 50,
            jitter: Factor(0.0),
            ..Backoff::default()
        },
        ..Retry::default()
    });
    Event::ActionKnown(Box::new(action))
}

fn submission() -> Event {
    let submission = attune_core::Submission::new("core.noop");
    Event::Submit {
        submit: Submit::new(RequestId::fresh(), submission, OnReject::Answer),
        known: None,
        reply_to: Some("asker".into()),
    }
}

fn kinds(happened: &[Happened]) -> Vec<EventKind> {
    happened.iter().map(|what| what.kind()).collect()
}

#[test]
fn everything_that_happens_is_told_in_order() {
    let mut world = World::new(Some(1), 100);
    assert_eq!(told(&mut world, telling(Events::ALL, 1, 2)), []);
    let first = told(&mut world, submission());
    let [
        Happened::Accepted {
            execution_id: id,
            position: 0,
        },
        Happened::Started { attempt, .. },
    ] = first[..]
    else {
        panic!("{first:?}");
    };
    assert_eq!(attempt, Attempt(1));
    let second = told(&mut world, submission());
    assert!(
        matches!(second[..], [Happened::Accepted { .. }]),
        "{second:?}"
    );
    // The third takes the place of the second.
    let third = told(&mut world, submission());
    let [
        Happened::Dropped {
            execution_id,
            newcomer,
            ..
        },
        Happened::Accepted {
            execution_id: third_id,
            ..
        },
    ] = third[..]
    else {
        panic!("{third:?}");
    };
    assert_eq!(second[0].execution().unwrap().0, execution_id);
    assert_eq!(newcomer, third_id);
    let mut failed = completion(id, 1);
    failed.outcome = Arc::new(Outcome::failed("no luck".to_owned()));
    let retried = told(&mut world, Event::Completed(failed));
    assert_eq!(kinds(&retried), [EventKind::Retried, EventKind::Started]);
    let cancelled = told(&mut world, cancel(id));
    let finished = |what: Option<&Happened>, wanted: Status| match what {
        Some(Happened::Finished { status, .. }) => assert_eq!(*status, wanted),
        other => panic!("{other:?}"),
    };
    finished(cancelled.first(), Status::Cancelled);
    let ended = told(&mut world, completed(third_id, 1));
    finished(ended.first(), Status::Succeeded);
}

#[test]
fn changes_of_limits_and_pauses_are_told_once() {
    let mut world = World::new(Some(1), 100);
    told(&mut world, telling(Events::ALL, 1, 2));
    let (earlier, limit) = (Some(1), Some(5));
    let changed = told(&mut world, telling(Events::ALL, 5, 3));
    assert_eq!(changed, [Happened::LimitChanged { earlier, limit }]);
    assert_eq!(told(&mut world, telling(Events::ALL, 5, 4)), []);
    let pauses = |version, mode: Option<PauseMode>| {
        let held = mode.map(|mode| (PauseTarget::All, mode));
        Event::Pauses(Arc::new(Pauses {
            version,
            held: held.into_iter().collect(),
            ..Pauses::default()
        }))
    };
    let mode = PauseMode::Drain;
    let paused = told(&mut world, pauses(1, Some(mode)));
    assert_eq!(paused, [Happened::Paused { mode }]);
    assert_eq!(told(&mut world, pauses(2, Some(mode))), []);
    let refused = told(&mut world, submission());
    let code = RejectCode::QueueDraining;
    assert!(matches!(refused[..], [Happened::Rejected { code: said, .. }] if said == code));
    assert_eq!(told(&mut world, pauses(3, None)), [Happened::Resumed]);
}

#[test]
fn nothing_is_told_that_is_not_asked_for() {
    let mut world = World::new(Some(1), 100);
    let only: Events = [EventKind::Finished].into_iter().collect();
    told(&mut world, telling(only, 1, 2));
    assert_eq!(told(&mut world, submission()), []);
    let id = world.holders()[0];
    assert_eq!(
        kinds(&told(&mut world, completed(id, 1))),
        [EventKind::Finished]
    );
    told(&mut world, telling(Events::NONE, 2, 3));
    assert_eq!(told(&mut world, submission()), []);
}

#[test]
fn who_is_replaced_and_operations_that_are_over_are_told() {
    let mut world = World::new(Some(1), 100);
    let mut latest = action(Some(1));
    latest.version += 1;
    latest.spec.policy.events = Events::ALL;
    latest.spec.policy.concurrency.on_limit = Some(OnLimit::ReplaceWaiting);
    told(&mut world, Event::ActionKnown(Box::new(latest)));
    told(&mut world, submission());
    let waits = told(&mut world, submission())[0].execution().unwrap().0;
    let replaced = told(&mut world, submission());
    let [
        Happened::Replaced {
            execution_id,
            newcomer,
            ..
        },
        Happened::Accepted {
            execution_id: came, ..
        },
    ] = replaced[..]
    else {
        panic!("{replaced:?}");
    };
    assert_eq!((execution_id, newcomer), (waits, came));
    let part = |id, action: &str| PartOfOperation {
        operation: Operation {
            id: OperationId(id),
            kind: OperationKind::Clear,
            filter: OperationFilter {
                action: Some(action.parse().unwrap()),
                ..OperationFilter::default()
            },
        },
        partition: PARTITION,
        progress: OperationProgress::default(),
    };
    let parts = vec![part(1, "core.other"), part(2, "core.noop")];
    assert_eq!(told(&mut world, Event::Operations(parts)), []);
    for (id, expected) in [
        (1, vec![]),
        (2, vec![EventKind::Finished, EventKind::OperationFinished]),
    ] {
        let page = world
            .partition
            .page(OperationId(id), 10, |_| false)
            .unwrap();
        let words = Vec::new();
        let over = told(&mut world, Event::Page(page, words));
        let mut told = kinds(&over);
        told.sort_unstable();
        assert_eq!(told, expected);
        let counts = over.iter().find_map(|what| match what {
            Happened::OperationFinished { done, skipped, .. } => Some((*done, *skipped)),
            _ => None,
        });
        assert_eq!(counts, (id == 2).then_some((1, 0)));
    }
}

#[test]
fn a_refusal_that_a_letter_keeps_is_told_when_the_letter_is_stored() {
    let mut world = World::new(Some(1), 100);
    told(&mut world, telling(Events::ALL, 1, 2));
    // No execution can be made of it, so only a letter keeps it.
    let mut wrong = attune_core::Submission::new("core.noop");
    wrong.labels = [(String::new(), String::new())].into();
    let submit = |on_reject| Event::Submit {
        submit: Submit::new(RequestId::fresh(), wrong.clone(), on_reject),
        known: None,
        reply_to: None,
    };
    for (on_reject, events) in [(OnReject::Answer, (1, 0)), (OnReject::Record, (0, 1))] {
        let effects = world.partition.step(world.now, submit(on_reject));
        let keeps = effects.iter().any(Effect::stands_beside);
        assert_eq!(keeps, on_reject == OnReject::Record);
        let mut draft = Draft::default();
        draft.add_delivery(PARTITION, DeliveryId(1), effects);
        let mut round = draft.into_round(OwnerId::fresh(), world.now);
        let tell = round.tells.remove(&PARTITION).unwrap();
        let beside = tell.beside.as_ref().map_or(0, |beside| beside.events.len());
        assert_eq!((tell.events.len(), beside), events);
        assert_eq!(tell.whole().events.len(), 1);
    }
}
