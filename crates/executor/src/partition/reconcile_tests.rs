//! Tests of what the comparison with the store leaves alone: what changed while the store was
//! read, and what is not in the range that was read.

use super::test_world::{ACTION, World, reconcile};
use super::*;
use crate::counters::Counter;
use crate::notice::Notice;
use crate::queue::Waiting;
use crate::stored::StoredSlot;

const MENDED: [Counter; 4] = [
    Counter::SlotLeakMended,
    Counter::SlotMissingMended,
    Counter::WaitingLeakMended,
    Counter::WaitingMissingMended,
];

impl World {
    /// How often something was mended.
    fn mended(&self) -> u64 {
        MENDED.iter().map(|counter| self.count(*counter)).sum()
    }

    fn compare_slots(&mut self, slots: Vec<StoredSlot>, changed: &[ExecutionId]) -> Vec<Effect> {
        let mut event = reconcile(slots);
        if let Event::Reconcile { changed: of, .. } = &mut event {
            *of = Arc::new(changed.iter().copied().collect());
        }
        self.step(event)
    }

    fn compare_waiting(
        &mut self,
        (after, last): (Option<ExecutionId>, Option<ExecutionId>),
        rows: Vec<StoredExecution>,
        changed: &[ExecutionId],
    ) -> Vec<Effect> {
        self.step(Event::ReconcileRange {
            after,
            last,
            rows,
            changed: Arc::new(changed.iter().copied().collect()),
        })
    }
}

#[test]
fn slots_that_changed_while_the_store_was_read_are_left_alone() {
    let mut world = World::new(Some(2), 100);
    let ids = world.submit(4);
    // What was read shows one that has ended since, and not yet one that was granted since.
    let read = world.slots();
    world.complete(ids[0], 1);
    assert_eq!(world.holders(), [ids[1], ids[2]]);
    let effects = world.compare_slots(read.clone(), &[ids[0], ids[2]]);
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(world.partition.holds(ids[2]), Some(Attempt(1)));
    assert_eq!(world.partition.holds(ids[0]), None);

    // A worker that was lost then, and whose slot came back since, is not lost again.
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(2);
    world.start(ids[0]);
    let read = vec![world.slot(ids[0], true)];
    world.complete(ids[0], 1);
    assert!(world.compare_slots(read, &[ids[0], ids[1]]).is_empty());
    assert_eq!(world.count(Counter::Revoked), 0);
    assert_eq!(world.mended(), 0);
}

/// The same without the exception: that is what it is there for.
#[test]
fn slots_that_did_not_change_are_mended() {
    let mut world = World::new(Some(2), 100);
    let ids = world.submit(4);
    let read = world.slots();
    world.complete(ids[0], 1);
    world.tampered = true;
    world.partition.step(world.now, reconcile(read));
    assert_eq!(world.partition.holds(ids[0]), Some(Attempt(1)));
    assert_eq!(world.partition.holds(ids[2]), None);
}

#[test]
fn who_waits_and_changed_while_the_store_was_read_is_left_alone() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(3);
    let read = world.rows();
    // One ends, one is cancelled, one comes.
    world.complete(ids[0], 1);
    world.round(vec![super::test_world::cancel(ids[2])]);
    let new = world.submit(1)[0];
    let changed = [ids[0], ids[1], ids[2], new];
    let effects = world.compare_waiting((None, None), read, &changed);
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(world.mended(), 0);
    assert_eq!(world.holders(), [ids[1]]);
    world.complete(ids[1], 1);
    assert_eq!(world.holders(), [new]);
}

#[test]
fn only_the_range_that_was_read_is_compared() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(6);
    let rows = world.rows();
    let row = |n: usize| rows[n].clone();
    // A range in the middle, whole: its ends belong to others.
    let (after, last) = (Some(ids[1]), Some(ids[3]));
    let slice = vec![row(2), row(3)];
    assert!(world.compare_waiting((after, last), slice, &[]).is_empty());
    assert_eq!(world.mended(), 0);
    // One is missing in the middle; those outside are still left alone.
    world.tampered = true;
    world.stored.active.remove(&ids[2]);
    world.stored.totals.enqueued -= 1;
    let effects = world.partition.step(
        0,
        Event::ReconcileRange {
            after,
            last,
            rows: vec![row(3)],
            changed: Arc::default(),
        },
    );
    let forgotten: Vec<ExecutionId> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Notice(Notice::WaitingDiffers { execution_id, .. }) => Some(*execution_id),
            _ => None,
        })
        .collect();
    assert_eq!(forgotten, [ids[2]]);
    let stats = world.partition.stats(ACTION).unwrap();
    assert_eq!((stats.queue_length, stats.active_count), (4, 1));
    // Who holds a slot in memory only is found by its id, not by ranges.
    let effects = world.partition.step(
        0,
        Event::ReconcileRange {
            after: None,
            last: Some(ids[0]),
            rows: vec![],
            changed: Arc::default(),
        },
    );
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(world.partition.holds(ids[0]), Some(Attempt(1)));
}

/// Said to be there is not enough: it must stand in the queue.
#[test]
fn who_is_known_and_stands_nowhere_gets_its_place_back() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(3);
    world.tampered = true;
    let forget = |queue: &mut ActionQueue| queue.forget_waiting(ids[1].seq());
    let forgotten = world.partition.queues.with_existing(ACTION, forget);
    assert_eq!(forgotten, Some(true));
    let rows = world.rows();
    world.compare_waiting((None, None), rows, &[]);
    assert_eq!(world.count(Counter::WaitingMissingMended), 1);
    world.complete(ids[0], 1);
    assert_eq!(world.holders(), [ids[1]]);
    // One that waits for its time stands in its queue as well.
    let delayed = Waiting {
        front: false,
        execution_id: ids[2],
        seq: ids[2].seq(),
        enqueued_at: 0,
        eligible_at: 0,
        attempt: Attempt(0),
        unbegun: 0,
        delayed: true,
        share: crate::policy::Share::default(),
    };
    let delay = |queue: &mut ActionQueue| {
        assert!(queue.forget_waiting(delayed.seq));
        queue.restore_waiting(attune_core::Priority::Normal, delayed, None, Some(1_000));
    };
    world.partition.queues.with_existing(ACTION, delay);
    let rows = world.rows();
    world.compare_waiting((None, None), rows, &[]);
    assert_eq!(world.count(Counter::WaitingMissingMended), 1);
}

/// Who holds a slot in the store only counts, whether it waits in memory or is not there at all.
#[test]
fn who_holds_a_slot_in_the_store_only_is_counted() {
    let mut world = World::new(Some(1), 100);
    let ids = world.submit(3);
    world.tampered = true;
    let forget = |queue: &mut ActionQueue| queue.forget_holder(ids[0]);
    world.partition.queues.with_existing(ACTION, forget);
    world.partition.index.remove(&ids[0]);
    let mut rows = world.rows();
    for row in &mut rows[..2] {
        row.status = Status::Requested;
        row.attempt = Attempt(1);
    }
    // What changed while the store was read is left alone.
    world.partition.step(
        0,
        Event::ReconcileRange {
            after: None,
            last: None,
            rows: rows.clone(),
            changed: Arc::new(ids.iter().copied().collect()),
        },
    );
    assert_eq!(world.partition.holds(ids[1]), None);
    let effects = world.partition.step(
        0,
        Event::ReconcileRange {
            after: None,
            last: None,
            rows,
            changed: Arc::default(),
        },
    );
    let counted = |it: &&Effect| matches!(it, Effect::Count(Counter::SlotMissingMended));
    assert_eq!(effects.iter().filter(counted).count(), 2);
    let mut held = world.partition.held();
    held.sort_unstable();
    assert_eq!(held, ids[..2]);
    let stats = world.partition.stats(ACTION).unwrap();
    assert_eq!((stats.queue_length, stats.active_count), (1, 2));
}

#[test]
fn who_is_restored_from_another_rule_is_asked_for() {
    let mut world = World::new(Some(5), 100);
    let mut action = super::test_world::action(Some(5));
    action.version = 2;
    action.spec.policy.concurrency.group_by = vec!["user".parse().unwrap()];
    action.spec.policy.concurrency.group_limit = Some(1);
    world.round(vec![Event::ActionKnown(Box::new(action))]);
    world.tampered = true;
    world.submit(2);
    assert_eq!(
        world.partition.blocked(ACTION),
        Some(crate::queue::Blocked::Groups)
    );
    // A row that memory does not know, accepted under the rule before or by an earlier release.
    let mut rows = world.rows();
    let mut missing = rows[1].clone();
    missing.id = ExecutionId::new(
        super::test_world::PARTITION,
        attune_core::Seq::new(Epoch(1), 50),
    );
    let id = missing.id;
    rows.push(missing);
    world.partition.step(
        0,
        Event::ReconcileRange {
            after: None,
            last: None,
            rows,
            changed: Arc::default(),
        },
    );
    assert_eq!(
        world.partition.blocked(ACTION),
        Some(crate::queue::Blocked::Regrouping)
    );
    assert_eq!(
        world.partition.unknown(1_000),
        [id],
        "the owner asks for it"
    );
}

#[test]
fn who_holds_another_attempt_and_is_of_another_rule_is_asked_for() {
    let mut world = World::new(Some(5), 100);
    let mut action = super::test_world::action(Some(5));
    action.version = 2;
    action.spec.policy.concurrency.group_by = vec!["user".parse().unwrap()];
    action.spec.policy.concurrency.group_limit = Some(1);
    world.round(vec![Event::ActionKnown(Box::new(action))]);
    world.tampered = true;
    let ids = world.submit(2);
    // The store shows a later attempt than memory: released, and counted anew.
    let mut slot = world.slot(ids[0], false);
    slot.attempt = Attempt(2);
    world.partition.step(0, reconcile(vec![slot]));
    assert_eq!(
        world.partition.blocked(ACTION),
        Some(crate::queue::Blocked::Regrouping)
    );
    assert_eq!(
        world.partition.unknown(1_000),
        [ids[0]],
        "the owner asks for it"
    );
}

#[test]
fn a_lowered_limit_counts_dear_ones_as_all_there_is() {
    let mut world = World::new(Some(8), 100);
    let cost = |max: u16, limit: u32, version: i64| {
        let mut action = super::test_world::action(Some(limit));
        action.version = version;
        action.spec.policy.concurrency.cost = Some(attune_core::policy::Cost {
            path: "labels.gpus".parse().unwrap(),
            default: 1,
            max,
        });
        action.spec.policy.check(None).unwrap();
        Event::ActionKnown(Box::new(action))
    };
    world.round(vec![cost(8, 8, 2)]);
    world.tampered = true;
    let submit = |gpus: &str| {
        let mut submission = attune_core::Submission::new("core.noop");
        submission.labels = [("gpus".to_owned(), gpus.to_owned())].into();
        super::test_world::submitted(
            attune_core::RequestId::fresh(),
            submission,
            OnReject::Answer,
        )
    };
    // One runs with all eight, one waits for all eight, and others for one each.
    let mut events = vec![submit("8"), submit("8")];
    events.extend((0..8).map(|_| submit("1")));
    world.round(events);
    assert_eq!(world.holders().len(), 1);
    // There are only four from now on; `max: 8` would be refused.
    world.round(vec![cost(4, 4, 3)]);
    let words: Vec<_> = world
        .partition
        .unknown(100)
        .into_iter()
        .map(|id| {
            let is_dear =
                id == world.holders()[0] || id == *world.stored.active.keys().nth(1).unwrap();
            crate::stored::StoredWords {
                id,
                requested_by: None,
                group: None,
                labels: [(
                    "gpus".to_owned(),
                    if is_dear { "8" } else { "1" }.to_owned(),
                )]
                .into(),
                parameters: attune_core::Submission::new("core.noop").parameters.clone(),
            }
        })
        .collect();
    world.round(vec![Event::Words(words)]);
    let dear: Vec<_> = world.stored.active.keys().take(2).copied().collect();
    let held = world.holders();
    assert_eq!(
        held.len(),
        1,
        "who runs with eight of four runs alone: {held:?}, dear {dear:?}"
    );
}

#[test]
fn a_queue_stands_still_no_longer_than_somebody_is_not_known() {
    let mut world = World::new(Some(5), 100);
    let id = world.submit(1)[0];
    let mut action = super::test_world::action(Some(5));
    action.version = 2;
    action.spec.policy.concurrency.group_by = vec!["user".parse().unwrap()];
    action.spec.policy.concurrency.group_limit = Some(1);
    world.round(vec![Event::ActionKnown(Box::new(action))]);
    assert_eq!(world.partition.unknown(9), [id]);
    world.complete(id, 1);
    assert!(world.partition.unknown(9).is_empty());
    assert!(world.partition.regrouping.is_empty(), "it is known of all");
}
