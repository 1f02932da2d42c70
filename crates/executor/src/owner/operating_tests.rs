//! Tests of bulk operations on their way to the partitions and back into the store.

use attune_core::{
    Operation, OperationFilter, OperationId, OperationKind, OperationProgress, RequestId,
};

use super::*;
use crate::round::Commit;
use crate::stored::{Batch, StoredWords};

/// What the store keeps of a commit.
pub(super) fn keep(operations: &mut Vec<PartOfOperation>, batch: &Batch) {
    for (partition, operation, progress) in &batch.progress {
        let mut parts = operations.iter_mut();
        let part = parts.find(|it| it.partition == *partition && it.operation.id == *operation);
        part.expect("it is open").progress = *progress;
    }
    operations.retain(|part| !part.progress.finished);
}

/// What executions say that nobody has submitted.
pub(super) fn of_nobody(ids: Vec<ExecutionId>) -> Vec<StoredWords> {
    let parameters = attune_core::RawValue::from_string("{}".to_owned()).unwrap();
    let words = ids.into_iter().map(|id| StoredWords {
        id,
        requested_by: None,
        group: None,
        labels: BTreeMap::new(),
        parameters: parameters.clone(),
    });
    words.collect()
}

fn part(id: i64, partition: u16, kind: OperationKind) -> PartOfOperation {
    PartOfOperation {
        operation: Operation {
            id: OperationId(id),
            kind,
            filter: OperationFilter {
                user: Some("ann".to_owned()),
                ..OperationFilter::default()
            },
        },
        partition: PartitionId(partition),
        progress: OperationProgress::default(),
    }
}

const CANCEL: OperationKind = OperationKind::Cancel {
    include_running: true,
};

fn changed() -> Work {
    Work::Operations(vec![RequestId::fresh()])
}

#[test]
fn a_command_brings_an_operation_to_its_end_and_a_lost_one_costs_one_pass() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.operations = vec![part(1, 0, CANCEL), part(1, 7, CANCEL)];
    world.deliver(1, 0, changed());
    assert!(world.is_acked(1));
    world.pass(10, false);
    assert_eq!(world.operations, [], "nobody is meant");
    world.operations = vec![part(2, 3, CANCEL)];
    world.pass(10_500, true);
    assert_eq!(world.operations, []);
}

#[test]
fn a_list_that_was_read_in_another_epoch_is_thrown_away() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.operations = vec![part(1, 0, CANCEL)];
    world.holds_back = Some(|call| matches!(call, Call::LoadOperations(_)));
    world.deliver(1, 0, changed());
    // Another owner has carried it out by the time the answer comes.
    world.operations.clear();
    let at = world.now;
    world.owner.want_new_epoch(PartitionId(0), at);
    world.pass(2_000, true);
    world.holds_back = None;
    world.pass(2_000, true);
    let partition = world.owner.partition(PartitionId(0)).unwrap();
    assert!(!partition.knows_operation(OperationId(1)));
}

#[test]
fn what_is_over_is_forgotten_although_a_commit_is_always_under_way() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.operations = vec![part(1, 0, CANCEL)];
    world.deliver(1, 0, changed());
    world.pass(10, false);
    assert_eq!(world.operations, []);
    let knows = |world: &World| {
        let partition = world.owner.partition(PartitionId(0));
        partition.is_some_and(|it| it.knows_operation(OperationId(1)))
    };
    assert!(knows(&world), "an earlier list may show it");
    world.holds_back = Some(|call| matches!(call, Call::Commit(_)));
    world.deliver(2, 0, super::look_ups::change("t.good"));
    world.deliver(3, 0, changed());
    world.pass(100, true);
    assert!(!world.is_acked(2), "it is under way");
    world.holds_back = None;
    world.pass(100, true);
    assert!(world.is_acked(3));
    assert!(!knows(&world));
}

#[test]
fn lists_do_not_pile_up_while_nothing_can_be_decided() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(|call| matches!(call, Call::Commit(_)));
    world.deliver(1, 0, super::look_ups::change("t.good"));
    world.pass(10, true);
    world.operations = vec![part(1, 0, CANCEL), part(2, 0, CANCEL)];
    world.pass(60_000, true);
    let waiting = |world: &World| {
        let pending = world.owner.pending.iter();
        let lists = pending.filter(|(_, event)| matches!(event, Event::Operations(_)));
        lists.count()
    };
    assert_eq!(waiting(&world), 1, "it was read every ten seconds");
    world.refuses = None;
    world.pass(5_000, true);
    assert_eq!((waiting(&world), world.operations.len()), (0, 0));
}

#[test]
fn what_cannot_be_read_is_told_and_stops_nothing_else() {
    let mut world = World::serving(1, WorkerId::fresh());
    world.refuses = Some(|call| matches!(call, Call::LoadOperationWords(_)));
    world.operations = vec![part(1, 0, CANCEL), part(2, 0, OperationKind::MoveToFront)];
    world.deliver(1, 0, changed());
    world.pass(6_000, true);
    let open: Vec<_> = world
        .operations
        .iter()
        .map(|part| part.operation.id.0)
        .collect();
    assert_eq!(open, [1], "the other one is over: nobody waits");
    let trouble = world.owner.trouble(world.now).unwrap();
    assert!(trouble.words.contains("an operation"), "{}", trouble.words);
    world.deliver(2, 0, super::look_ups::change("t.good"));
    assert!(world.is_acked(2));
}

#[test]
fn a_page_that_the_store_refuses_is_taken_back_and_tried_again_later() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses =
        Some(|call| matches!(call, Call::Commit(commit) if !commit.batch.progress.is_empty()));
    world.operations = vec![part(1, 0, CANCEL)];
    let epoch = |world: &World| world.leases[0].epoch;
    let before = epoch(&world);
    world.deliver(1, 0, changed());
    world.pass(8_000, true);
    assert_eq!(
        epoch(&world),
        Epoch(before.0 + 1),
        "its partition was loaded again, once"
    );
    world.deliver(2, 0, super::look_ups::change("t.good"));
    world.pass(10, true);
    assert!(world.is_acked(2), "it goes on without it");
    let told = |world: &World| {
        let refused = world.owner.refused_operations(world.now);
        refused.map(|(.., trouble)| trouble).collect::<Vec<_>>()
    };
    let since = told(&world)[0].for_ms;
    let trouble = world.owner.trouble(world.now).unwrap();
    let words = "what operation 1 does cannot be stored";
    assert!(trouble.words.contains(words), "{}", trouble.words);
    world.pass(40_000, true);
    assert!(
        told(&world)[0].for_ms >= since + 40_000,
        "it is one refusal"
    );
    world.refuses = None;
    world.pass(40_000, true);
    assert_eq!((world.operations.len(), told(&world)), (0, Vec::new()));
    assert_eq!(epoch(&world), Epoch(before.0 + 2), "the second try as well");
}

#[test]
fn others_have_a_round_between_two_pages() {
    let mut world = World::serving(64, WorkerId::fresh());
    world.owner.options.operation_rows = 16;
    let mut all = part(1, 0, CANCEL);
    all.operation.filter = OperationFilter::default();
    world.operations = vec![all];
    world.holds_back = Some(|call| matches!(call, Call::Commit(_)));
    world.deliver(1, 0, changed());
    let is_page = |commit: &Arc<Commit>| {
        let mut progress = commit.batch.progress.iter();
        progress.any(|(.., it)| it.cursor.is_some())
    };
    let (mut pages, mut asked, mut beside_page) = (0, 1, 1);
    while !world.operations.is_empty() {
        // While this is being written somebody else wants something.
        asked += 1;
        world.deliver(asked, 0, super::look_ups::change("t.good"));
        if world.owner.rounds.under_way().is_some_and(is_page) {
            pages += 1;
            assert!(world.is_acked(beside_page), "before page {pages}");
            beside_page = asked;
        }
        let late = world.held_back.drain(..);
        let late = late.map(|(id, reply)| Input::Answered(id, reply));
        let late = late.collect();
        world.give(late);
    }
    assert_eq!(pages, 3, "the fourth is under way");
}

#[test]
fn pages_about_nobody_follow_at_once() {
    let mut world = World::serving(64, WorkerId::fresh());
    world.owner.options.operation_rows = 16;
    world.operations = vec![part(1, 0, CANCEL)];
    world.deliver(1, 0, changed());
    // Nothing else happens, and nothing of it is written that would be answered.
    world.pass(50, false);
    assert_eq!(world.operations, [], "it has come to its end");
}

#[test]
fn a_page_that_is_too_much_for_the_store_comes_again_in_parts() {
    let mut world = World::serving(64, WorkerId::fresh());
    let mut all = part(1, 0, CANCEL);
    all.operation.filter = OperationFilter::default();
    world.operations = vec![all];
    // As a statement that takes longer than it may.
    world.refuses = Some(|call| {
        let Call::Commit(commit) = call else {
            return false;
        };
        commit.batch.changes.len() > 20
    });
    world.deliver(1, 0, changed());
    world.pass(120_000, true);
    assert_eq!(world.operations, [], "it has come to its end");
}
