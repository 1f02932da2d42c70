//! Tests of reads that fail for one partition alone.

use std::sync::Arc;

use attune_core::{Outcome, RequestId, Submission};

use super::*;
use crate::partition::{Completion, OnReject, Submit};

const BAD: &str = "t.bad";

impl World {
    pub(super) fn is_unread(&self, actions: &[String]) -> bool {
        actions.iter().any(|it| Some(it.as_str()) == self.unread)
    }

    /// Something comes for a partition.
    pub(super) fn deliver(&mut self, id: u64, partition: u16, work: Work) {
        let partition = PartitionId(partition);
        let delivered = Delivered {
            id: DeliveryId(id),
            subscription: self.owner.places[&partition].subscription,
            partition,
            bytes: 100,
            reply_to: None,
            work,
        };
        self.give(VecDeque::from([Input::Delivered(vec![delivered])]));
    }

    fn unread(&self) -> Vec<PartitionId> {
        let unread = self.owner.unread(self.now);
        unread.map(|(partition, ..)| partition).collect()
    }

    pub(super) fn is_acked(&self, id: u64) -> bool {
        self.acked.contains(&DeliveryId(id))
    }
}

pub(super) fn change(action_ref: &str) -> Work {
    Work::Changes(vec![(RequestId::fresh(), action_ref.to_owned())])
}

fn end() -> Work {
    Work::Completions(vec![Completion {
        execution_id: ExecutionId::new(PartitionId(1), Seq::new(Epoch(2), 7)),
        attempt: Attempt(1),
        action_id: ActionId(1),
        outcome: Arc::new(Outcome::succeeded(None)),
        worker: WorkerId::fresh(),
        user: None,
        ran: None,
    }])
}

/// A row that cannot be read holds up what comes for its partition, is told, and nothing else.
#[test]
fn what_cannot_be_looked_up_holds_up_its_partition_alone() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    assert_eq!(world.owner.served(), usize::from(PARTITIONS));
    world.unread = Some(BAD);
    // Asked about together with others.
    world.holds_back = Some(|call| matches!(call, Call::LookUp { .. }));
    world.deliver(1, 0, change("t.good"));
    for (id, partition, action_ref) in [(2, 0, "t.good"), (3, 1, BAD), (4, 2, "t.good")] {
        world.deliver(id, partition, change(action_ref));
    }
    world.deliver(5, 1, end());
    world.holds_back = None;
    world.pass(100, true);
    for id in [1, 2, 4, 5] {
        assert!(world.is_acked(id), "{id}: {:?}", world.acked);
    }
    for round in 0..100 {
        let id = 10 + 4 * round;
        world.deliver(id, 0, change("t.good"));
        world.deliver(id + 1, 1, change("t.good"));
        world.deliver(id + 2, 3, change("t.good"));
        world.deliver(id + 3, 1, end());
        world.pass(100, true);
        for id in [id, id + 2, id + 3] {
            assert!(world.is_acked(id), "{id}: {:?}", world.acked);
        }
    }
    assert!(!world.is_acked(3) && !world.is_acked(11));
    assert_eq!(world.unread(), [PartitionId(1)]);
    let trouble = world.owner.trouble(world.now).unwrap();
    assert!(trouble.for_ms > 9_000, "{trouble:?}");
    assert!(trouble.words.contains("unreadable"), "{trouble:?}");

    world.unread = None;
    world.pass(2_100, true);
    let order: Vec<u64> = world.acked.iter().map(|id| id.0).collect();
    let late = order
        .iter()
        .filter(|id| **id == 3 || *id % 4 == 3 && **id > 10);
    assert_eq!(late.count(), 101, "all that waited");
    assert_eq!(world.unread(), []);
    assert_eq!(world.owner.trouble(world.now), None);
}

/// Two partitions whose look-ups take long to fail: one of them is always due, and those of the others
/// are asked all the same.
#[test]
fn look_ups_that_fail_slowly_starve_nobody() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.unread = Some(BAD);
    world.holds_back = Some(|call| matches!(call, Call::LookUp { .. }));
    world.deliver(1, 1, change(BAD));
    world.deliver(2, 2, change(BAD));
    for id in 3..10 {
        world.deliver(id, 0, change("t.good"));
        // Every answer takes 3 s. The first are asked about together with those that fail.
        for _ in 0..if id == 3 { 8 } else { 3 } {
            world.pass(3_000, true);
            let late: Vec<_> = world.held_back.drain(..).collect();
            let late = late
                .into_iter()
                .map(|(id, reply)| Input::Answered(id, reply));
            world.give(late.collect());
        }
        assert!(world.is_acked(id), "{id}: {:?}", world.acked);
    }
    assert_eq!(world.unread(), [PartitionId(1), PartitionId(2)]);
}

/// What somebody else has by now is no trouble of this owner.
#[test]
fn what_is_lost_is_no_trouble_any_more() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.unread = Some(BAD);
    world.deliver(1, 1, change(BAD));
    world.pass(1_000, true);
    assert_eq!(world.unread(), [PartitionId(1)]);
    world.away_until = world.now + 4 * TTL;
    world.pass(4 * TTL, false);
    assert_eq!(world.unread(), []);
}

/// A partition whose rows cannot be read is owned by somebody who can do nothing for it: that is said.
#[test]
fn a_partition_that_cannot_be_loaded_is_told() {
    let mut world = World::new();
    world.unreadable = Some(PartitionId(1));
    world.pass(60_000, false);
    assert!(world.owner.served() > 0, "the others are served");
    let told: Vec<_> = world.owner.refusals(world.now).collect();
    let [(PartitionId(1), _, trouble)] = told.as_slice() else {
        panic!("{told:?}");
    };
    assert!(trouble.for_ms > 20_000, "{trouble:?}");
    assert!(
        trouble
            .words
            .contains("cannot be loaded: a stored priority"),
        "{trouble:?}"
    );
    assert!(world.owner.trouble(world.now).is_some());
    world.unreadable = None;
    world.pass(5_000, false);
    assert_eq!(world.owner.refusals(world.now).count(), 0);
    assert_eq!(world.owner.trouble(world.now), None);
}

/// What nobody can have asked for before is decided without the store's word; its copy is not.
#[test]
fn what_is_unheard_of_is_not_looked_up() {
    let mut world = World::new().free();
    world.gap = RequestGap {
        above: None,
        below: None,
    };
    world.pass(5_000, true);
    assert_eq!(world.owner.served(), usize::from(PARTITIONS));
    world.refuses = Some(|call| matches!(call, Call::LookUp { .. }));
    let made = 1_700_000_000_000 + world.now + world.store_ahead;
    let id = |n: u128| {
        let first = RequestId::first_of(made).0.as_u128();
        RequestId(uuid::Uuid::from_u128(first | 7 << 76 | 2 << 62 | n))
    };
    let action_ref = world.action.spec.action_ref.as_str().to_owned();
    let submit = |n| {
        let submission = Submission::new(action_ref.clone());
        Work::Submits(vec![Submit::new(id(n), submission, OnReject::Answer)])
    };
    world.deliver(1, 0, submit(1));
    world.pass(100, true);
    assert!(world.is_acked(1), "{:?}", world.notices);
    world.deliver(2, 0, submit(1));
    world.deliver(3, 0, submit(2));
    world.pass(100, true);
    assert!(!world.is_acked(2), "it came before");
    assert!(!world.is_acked(3), "commands keep their order");
    world.refuses = None;
    world.pass(5_000, true);
    assert!(world.is_acked(2) && world.is_acked(3));
}
