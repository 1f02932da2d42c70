//! Tests of what an owner does that loses the bus and not the store.

use super::*;
use crate::leases::shares;

impl World {
    /// The owner and one other have their shares, and nobody else is there.
    fn shared() -> Self {
        let mut world = Self::new();
        let (me, other) = (world.owner.options.id, world.other());
        let shares = shares(&[me, other], PARTITIONS);
        for lease in &mut world.leases {
            let is_mine = shares[&lease.partition] == me;
            if is_mine {
                (lease.holder, lease.ttl) = (None, 0);
            }
        }
        world.pass(2 * TTL, true);
        assert_eq!(world.places(), usize::from(PARTITIONS) / 2);
        world.announced.clear();
        world
    }

    fn other(&self) -> OwnerId {
        self.executors[0].executor
    }

    fn places(&self) -> usize {
        self.owner.places().count()
    }

    fn bus(&mut self, reachable: bool) {
        self.give(VecDeque::from([Input::Bus { reachable }]));
    }

    fn others_are_cut_off(&mut self, cut_off: bool) {
        for row in &mut self.executors {
            row.cut_off = cut_off;
        }
    }

    pub(super) fn told(&self, is_it: fn(&Notice) -> bool) -> usize {
        self.notices.iter().filter(|one| is_it(one)).count()
    }
}

#[test]
fn who_has_lost_the_bus_makes_way_for_those_who_have_it_and_takes_nothing() {
    let mut world = World::shared();
    world.bus(false);
    world.pass(TTL - 1_000, true);
    assert_eq!(
        world.places(),
        usize::from(PARTITIONS) / 2,
        "others may find that they are cut off too"
    );
    assert_eq!(world.announced.last(), Some(&true));
    world.pass(TTL, true);
    assert_eq!(world.places(), 0);
    let other = world.other();
    for lease in &world.leases {
        let goes_to = lease.holder.or(lease.wanted_owner);
        assert_eq!(goes_to, Some(other), "{lease:?}");
    }
    assert_eq!(world.told(|it| matches!(it, Notice::CutOff)), 1);

    // Not even what nobody takes.
    world.pass(4 * TTL, true);
    assert_eq!(world.places(), 0);

    world.bus(true);
    world.pass(4 * TTL, true);
    assert_eq!(world.announced.last(), Some(&false));
    assert_eq!(
        world.places(),
        usize::from(PARTITIONS) / 2,
        "the other one has not taken them"
    );
    assert_eq!(world.told(|it| matches!(it, Notice::BusIsBack)), 1);
}

#[test]
fn a_bus_that_is_away_for_everybody_moves_nothing() {
    let mut world = World::shared();
    let epochs: Vec<Epoch> = world.leases.iter().map(|lease| lease.epoch).collect();
    // One that has been cut off for longer does not count, and counts again when all are.
    world.executors.push(StoredExecutor {
        executor: OwnerId::fresh(),
        renewals: 1,
        live: true,
        cut_off: true,
    });
    world.bus(false);
    world.others_are_cut_off(true);
    world.pass(8 * TTL, true);
    assert_eq!(world.announced.last(), Some(&true));
    // One of them finds it again before the other does.
    world.executors[0].cut_off = false;
    world.pass(TTL * 4 / 5, true);
    world.bus(true);
    world.pass(8 * TTL, true);
    assert_eq!(world.announced.last(), Some(&false));
    assert_eq!(world.places(), usize::from(PARTITIONS) / 2);
    let now: Vec<Epoch> = world.leases.iter().map(|lease| lease.epoch).collect();
    assert_eq!(now, epochs);
    assert_eq!(world.told(|it| matches!(it, Notice::CutOff)), 0);
}

#[test]
fn who_is_alone_without_the_bus_keeps_what_it_has() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.bus(false);
    world.pass(8 * TTL, true);
    assert_eq!(world.places(), usize::from(PARTITIONS));
}

#[test]
fn a_moment_without_the_bus_is_nobodys_business_and_one_after_the_other_is() {
    let mut world = World::shared();
    for _ in 0..4 {
        world.bus(false);
        world.pass(1_000, true);
        world.bus(true);
        world.pass(TTL, true);
    }
    assert!(!world.announced.contains(&true), "{:?}", world.announced);
    assert_eq!(world.places(), usize::from(PARTITIONS) / 2);

    for _ in 0..8 {
        world.bus(false);
        world.pass(4_000, true);
        world.bus(true);
        world.pass(1_000, true);
    }
    assert_eq!(world.announced.last(), Some(&true));
    assert_eq!(world.places(), 0);
}

#[test]
fn who_ends_leaves_its_partitions_to_those_who_have_the_bus() {
    let mut world = World::shared();
    let (has_bus, cut_off) = (world.other(), OwnerId::fresh());
    world.executors.push(StoredExecutor {
        executor: cut_off,
        renewals: 1,
        live: true,
        cut_off: true,
    });
    world.pass(TTL / 3, true);
    world.give(VecDeque::from([Input::Leave]));
    world.pass(TTL, true);
    assert!(world.owner.has_ended());
    for lease in &world.leases {
        let goes_to = lease.holder.or(lease.wanted_owner);
        assert_eq!(goes_to, Some(has_bus), "{lease:?}");
    }
}

/// What cannot be taken, and takes long to say so, keeps nobody from renewing what it holds.
#[test]
fn a_take_over_that_fails_starves_no_renewal() {
    let mut world = World::shared();
    world.refuses_takes = true;
    world.pass(2 * TTL, false);
    for _ in 0..20 {
        world.holds_back = Some(|call| matches!(call, Call::TakeOver(_)));
        world.pass(TTL / 5, false);
        world.holds_back = None;
        world.pass(100, false);
    }
    assert_eq!(world.told(|it| matches!(it, Notice::Untrusted)), 0);
    assert_eq!(world.places(), usize::from(PARTITIONS) / 2);
    world.refuses_takes = false;
    world.pass(TTL, false);
    assert_eq!(world.places(), usize::from(PARTITIONS));
}

/// However long the store takes to end the leases of workers, it is asked once at a time.
#[test]
fn leases_of_workers_are_ended_one_call_after_the_other() {
    let mut world = World::new();
    world.worker();
    world.pass(5_000, true);
    world.holds_back = Some(|call| matches!(call, Call::EndWorkers(_)));
    for _ in 0..60 {
        world.pass(1_000, false);
        // It is not done yet.
        world.workers[0].ended = false;
    }
    assert_eq!(world.held_back.len(), 1);
}

/// A partition that was taken by a call whose answer took longer than a lease goes back like the others.
#[test]
fn what_an_answer_gives_that_came_too_late_goes_back() {
    let mut world = World::shared();
    world.pass(TTL, false);
    world.holds_back = Some(|call| matches!(call, Call::TakeOver(_)));
    while world.held_back.is_empty() {
        world.pass(100, false);
    }
    // Nobody answers any more, and when others may own everything, that one answer comes.
    world.away_until = world.now + 4 * TTL;
    world.pass(2 * TTL, false);
    assert_eq!(world.places(), 0);
    world.holds_back = None;
    world.pass(1_000, false);
    assert_eq!(
        world.places(),
        0,
        "{:?}",
        world.owner.places().collect::<Vec<_>>()
    );
}
