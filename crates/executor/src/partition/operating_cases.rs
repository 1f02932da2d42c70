//! Single histories of bulk operations.

use super::*;

#[test]
fn of_two_operations_over_the_same_the_later_one_has_the_last_word() {
    let submit = |priority| Step::Submit(0, priority, true, true, false);
    let begin = |kind| {
        let filter = OperationFilter {
            all: true,
            ..OperationFilter::default()
        };
        Step::Begin(kind, filter, true)
    };
    let mut world = World::new();
    let priorities = [Priority::Normal, Priority::Low, Priority::High];
    for priority in priorities.into_iter().cycle().take(9) {
        let Step::Submit(action, ..) = submit(priority) else {
            continue;
        };
        let mut submission = Submission::new(ACTIONS[action]);
        submission.priority = Some(priority);
        submission.requested_by = Some("ann".to_owned());
        world.round(
            vec![submitted(RequestId::fresh(), submission, OnReject::Answer)],
            false,
        );
    }
    for kind in [
        OperationKind::Reprioritise {
            priority: Priority::Low,
        },
        OperationKind::MoveToFront,
        OperationKind::Reprioritise {
            priority: Priority::Critical,
        },
    ] {
        let Step::Begin(kind, filter, _) = begin(kind) else {
            continue;
        };
        let id = OperationId(world.store.operations.len() as i64 + 1);
        let operation = Operation { id, kind, filter };
        world
            .store
            .operations
            .insert(id, (operation, OperationProgress::default()));
    }
    let open = world.store.open();
    world.round(vec![Event::Operations(open)], false);
    world.finish();
    let waiting = world
        .store
        .rows
        .values()
        .filter(|row| row.status == Status::Queued);
    let standing: BTreeSet<_> = waiting.map(|row| (row.priority, row.front)).collect();
    assert_eq!(standing, [(Priority::Critical, false)].into());
    assert_eq!(world.store.rows.len(), 9);
}

#[test]
fn a_list_that_was_read_before_changes_nothing() {
    let mut world = World::new();
    let filter = OperationFilter {
        all: true,
        ..OperationFilter::default()
    };
    for _ in 0..5 {
        let mut submission = Submission::new(ACTIONS[0]);
        submission.requested_by = Some("ann".to_owned());
        world.round(
            vec![submitted(RequestId::fresh(), submission, OnReject::Answer)],
            false,
        );
    }
    let operation = Operation {
        id: OperationId(1),
        kind: OperationKind::MoveToFront,
        filter,
    };
    world
        .store
        .operations
        .insert(operation.id, (operation, OperationProgress::default()));
    let stale = world.store.open();
    world.round(vec![Event::Operations(stale.clone())], false);
    world.finish();
    world.round(vec![Event::Operations(stale)], false);
    assert!(world.store.open().is_empty());
    world.partition.forget_finished();
    assert!(!world.partition.knows_operation(OperationId(1)));
}

#[test]
fn what_has_no_words_yet_is_asked_for_again_and_stops_nothing_else() {
    let mut world = World::new();
    for _ in 0..5 {
        let mut submission = Submission::new(ACTIONS[0]);
        submission.requested_by = Some("ann".to_owned());
        world.round(
            vec![submitted(RequestId::fresh(), submission, OnReject::Answer)],
            false,
        );
    }
    let filter = OperationFilter {
        user: Some("ann".to_owned()),
        ..OperationFilter::default()
    };
    let kind = OperationKind::Cancel {
        include_running: false,
    };
    let operation = Operation {
        id: OperationId(1),
        kind,
        filter,
    };
    world
        .store
        .operations
        .insert(operation.id, (operation, OperationProgress::default()));
    world.round(vec![Event::Operations(world.store.open())], false);
    let page = world.partition.page(OperationId(1), 10, |_| false).unwrap();
    assert_eq!(page.ids.len(), 3, "two hold slots");
    world.round(vec![Event::Page(page, Vec::new())], false);
    assert_eq!(world.store.rows.len(), 5);
    world.finish();
    assert_eq!(world.store.rows.len(), 2);
}

#[test]
fn one_that_has_begun_is_brought_to_its_end_before_an_earlier_one_that_comes_late() {
    let priorities = [Priority::Low, Priority::Critical];
    let operations = priorities.map(|priority| {
        let filter = OperationFilter {
            all: true,
            ..OperationFilter::default()
        };
        (OperationKind::Reprioritise { priority }, filter)
    });
    for is_taken_over in [false, true] {
        let mut world = World::new();
        for _ in 0..9 {
            let mut submission = Submission::new(ACTIONS[0]);
            submission.requested_by = Some("ann".to_owned());
            let event = submitted(RequestId::fresh(), submission, OnReject::Answer);
            world.round(vec![event], false);
        }
        // The second one is stored first, and is at its first page when the other one comes.
        for (number, (kind, filter)) in [2, 1].into_iter().zip(operations.clone()) {
            let id = OperationId(number);
            let operation = Operation { id, kind, filter };
            let progress = OperationProgress::default();
            world.store.operations.insert(id, (operation, progress));
            world.round(vec![Event::Operations(world.store.open())], false);
            world.page(2, 0, false);
        }
        if is_taken_over {
            world.take_over();
        }
        assert_eq!(
            world.partition.open_operations(|_| false).next(),
            Some(OperationId(2))
        );
        let held_off = |id| id == OperationId(2);
        assert_eq!(
            world.partition.open_operations(held_off).next(),
            Some(OperationId(1))
        );
        world.finish();
        let rows = world.store.rows.values();
        let waiting = rows.filter(|row| row.status == Status::Queued);
        let standing: BTreeSet<_> = waiting.map(|row| row.priority).collect();
        assert_eq!(standing, [Priority::Critical].into());
    }
}
