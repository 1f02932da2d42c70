//! Tests of leases while the store does not answer, or cannot write them.

use super::*;

/// One row that cannot be written: the leases beside it are renewed, and taken, without it.
#[test]
fn a_lease_that_cannot_be_written_takes_no_other_with_it() {
    fn is_broken(call: &Call) -> bool {
        const BROKEN: PartitionId = PartitionId(1);
        match call {
            Call::Renew(held) => held.iter().any(|(partition, _)| *partition == BROKEN),
            Call::Acquire(wanted) => wanted.contains(&BROKEN),
            Call::TakeOver(seen) => seen.iter().any(|it| it.partition == BROKEN),
            _ => false,
        }
    }
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(is_broken);
    world.pass(10 * TTL, true);
    assert_eq!(world.owner.served(), usize::from(PARTITIONS));
    assert_eq!(world.taken.len(), usize::from(PARTITIONS), "each once");
    let trouble = world.owner.trouble(world.now).unwrap();
    assert!(trouble.for_ms > 9 * TTL, "{trouble:?}");
    assert!(
        trouble.words.starts_with("the lease of partition 1 cannot"),
        "{trouble:?}"
    );
    world.refuses = None;
    world.pass(TTL, true);
    assert_eq!(world.owner.trouble(world.now), None);

    let mut world = World::new().free();
    world.refuses = Some(is_broken);
    world.pass(2 * TTL, true);
    assert_eq!(world.owner.served(), usize::from(PARTITIONS) - 1);

    // When it is the only one, others learn that this owner is there.
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(|call| matches!(call, Call::Renew(_) | Call::Acquire(_)));
    let before = world.announced.len();
    world.pass(2 * TTL, true);
    assert!(world.announced.len() > before + 5);
    assert_eq!(world.owner.served(), 0, "nobody trusts them");
}

#[test]
fn while_the_store_is_away_no_lease_runs_out() {
    let mut world = World::new();
    let worker = world.worker();
    world.pass(5_000, true);
    world.away_until = world.now + 60_000;
    world.pass(60_000, true);
    assert_eq!((world.taken.len(), world.ended.len()), (0, 0));
    // Who comes back with it keeps everything, and who does not loses it after all.
    world.pass(10_000, true);
    assert_eq!((world.taken.len(), world.ended.len()), (0, 0));
    world.pass(60_000, false);
    assert_eq!(world.taken.len(), usize::from(PARTITIONS));
    assert_eq!(world.ended[0].0, worker);
}

/// A table that somebody has locked is no single row: nobody asks for fewer and fewer leases.
#[test]
fn a_refusal_that_takes_long_is_not_taken_apart() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(|call| matches!(call, Call::Renew(_)));
    world.holds_back = Some(|call| matches!(call, Call::Renew(_)));
    let mut asked = 0;
    for _ in 0..10 {
        while world.held_back.is_empty() {
            world.pass(100, true);
        }
        world.pass(3_000, true);
        asked += world.held_back.len();
        let late: VecDeque<Input> = world
            .held_back
            .drain(..)
            .map(|(id, reply)| Input::Answered(id, reply))
            .collect();
        world.give(late);
        let next = world.owner.keeper.unrenewable();
        assert!(next.is_none(), "{next:?}");
    }
    assert_eq!(asked, 10, "all together each time");
}
