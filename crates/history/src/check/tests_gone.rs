//! Who ends so that another one can wait.

use attune_core::{
    Attempt, Demand, Epoch, ExecutionId, Flow, GroupKey, OrderRule, Priority, Seq, Status,
};
use attune_record::{Gone, GoneBy, Record};

use super::Promise;
use super::tests::{assert_breaks, assert_clean};
use super::tests_groups::demand;
use super::world::{ACTION, PARTITION, World};

impl World {
    /// Somebody comes, in whose place `gone` ends.
    fn submit_for(&mut self, gone: ExecutionId, by: GoneBy, priority: Priority) -> ExecutionId {
        let newcomer = ExecutionId::new(PARTITION, Seq::new(Epoch(self.epoch), self.next));
        self.leave_for(gone, by, newcomer);
        let id = self.submit(priority);
        assert_eq!(id, newcomer);
        id
    }

    fn leave_for(&mut self, gone: ExecutionId, by: GoneBy, newcomer: ExecutionId) {
        let order = self.order;
        self.waiting.retain(|(_, id)| *id != gone);
        self.counts[2] += 1;
        let row = self.rows.get_mut(&gone).unwrap();
        row.status = Status::Cancelled;
        let attempt = row.attempt;
        self.decide(|epoch| Record::Ended {
            execution_id: gone,
            action_id: ACTION,
            attempt,
            status: Status::Cancelled,
            gone: Some(Gone {
                by,
                newcomer,
                order,
            }),
            epoch,
            round: 0,
            t_ns: 0,
        });
    }
}

fn ends(mut world: World) -> World {
    while let Some(id) = world.holders.keys().next().copied() {
        world.finish(id);
    }
    world.drain();
    world
}

#[test]
fn who_is_dropped_is_the_oldest_of_the_lowest_priority() {
    let (low, normal, high) = (Priority::Low, Priority::Normal, Priority::High);
    let world = |order, gone: usize, newcomer| {
        let mut world = World::new(1);
        world.order = order;
        let ids = [normal, low, normal, low].map(|priority| world.submit(priority));
        world.submit_for(ids[gone], GoneBy::Dropped, newcomer);
        ends(world)
    };
    let by_priority = OrderRule::Priority;
    assert_clean(&world(by_priority, 1, low));
    assert_clean(&world(by_priority, 1, high));
    assert_clean(&world(OrderRule::Fifo, 1, high));
    // A younger one, one of a higher priority than others, and one above the newcomer.
    assert_breaks(&world(by_priority, 3, high), Promise::I3);
    assert_breaks(&world(by_priority, 2, high), Promise::I3);
    assert_breaks(&world(by_priority, 2, low), Promise::I3);
    assert_breaks(&world(OrderRule::Fifo, 2, high), Promise::I3);
}

/// A queue that was made shorter stays as long as it is while each takes the place of another.
#[test]
fn who_takes_the_place_of_another_does_not_lengthen_the_queue() {
    let world = |is_replacing: bool| {
        let mut world = World::new(1);
        world.allow(0, 5);
        let ids = [Priority::Normal; 5].map(|priority| world.submit(priority));
        world.allow(0, 2);
        if is_replacing {
            world.submit_for(ids[1], GoneBy::Dropped, Priority::Normal);
        } else {
            world.submit(Priority::Normal);
        }
        let mut world = ends(world);
        world.stop();
        world
    };
    assert_clean(&world(true));
    assert_breaks(&world(false), Promise::I2);
}

#[test]
fn nobody_ends_for_one_who_does_not_come() {
    let mut world = World::new(1);
    let ids = [Priority::Normal; 3].map(|priority| world.submit(priority));
    let nobody = ExecutionId::new(PARTITION, Seq::new(Epoch(1), 77));
    world.leave_for(ids[1], GoneBy::Dropped, nobody);
    world.serve(None);
    assert_breaks(&ends(world), Promise::I1);
}

#[test]
fn who_takes_the_place_of_one_takes_that_of_all_of_its_group() {
    let world = |before: usize| {
        let mut world = World::new(1);
        let ids: Vec<_> = (0..=before)
            .map(|_| world.submit(Priority::Normal))
            .collect();
        world.submit_for(ids[1], GoneBy::Replaced, Priority::Normal);
        ends(world)
    };
    assert_clean(&world(1));
    assert_breaks(&world(2), Promise::I1);
    // Who holds a slot is replaced by nobody.
    let mut world = World::new(1);
    let first = world.submit(Priority::Normal);
    assert_eq!(world.rows[&first].attempt, Attempt(1));
    world.leave_for(first, GoneBy::Replaced, first);
    assert_breaks(&world, Promise::I1);
}

/// Of whom slots are shared between, and for whom starts are counted, makes nobody another one's rival less.
#[test]
fn those_of_other_flows_are_rivals() {
    let world = |before: usize| {
        let mut world = World::new(1);
        let ids: Vec<_> = (0..=before)
            .map(|_| world.submit(Priority::Normal))
            .collect();
        world.submit_for(ids[1], GoneBy::Replaced, Priority::Normal);
        let mut world = ends(world);
        world.group(Some(2), |number| Demand {
            flow: Flow::of(&[GroupKey([u8::try_from(number + 1).unwrap(); 16])]).unwrap(),
            ..demand(1, 1)
        });
        world
    };
    assert_clean(&world(1));
    assert_breaks(&world(2), Promise::I1);
}

/// A thousand end in one round, and not all who wait for the same newcomer need to be among them.
#[test]
fn only_a_round_that_has_ended_a_thousand_leaves_some_waiting() {
    let world = |ended: usize| {
        let mut world = World::new(1);
        let ids: Vec<_> = (0..ended + 2)
            .map(|_| world.submit(Priority::Normal))
            .collect();
        let newcomer = ExecutionId::new(PARTITION, Seq::new(Epoch(1), world.next));
        for gone in &ids[1..=ended] {
            world.leave_for(*gone, GoneBy::Replaced, newcomer);
        }
        assert_eq!(world.submit(Priority::Normal), newcomer);
        ends(world)
    };
    assert_clean(&world(1_000));
    assert_breaks(&world(999), Promise::I1);
}
