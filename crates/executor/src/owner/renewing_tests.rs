//! Tests of leases while the store does not answer, or cannot write them.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::super::keeper;
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

/// Answers what is held back after so many milliseconds, again and again; gives how many leases each
/// of these renewals asked for.
fn answer_late(world: &mut World, late: Millis, times: usize) -> Vec<usize> {
    let mut asked_for = Vec::new();
    for _ in 0..times {
        while world.held_back.is_empty() {
            world.pass(100, true);
        }
        let keeper::Step::Renewing { asked, .. } = &world.owner.keeper.step else {
            panic!("{:?}", world.owner.keeper.step);
        };
        asked_for.push(asked.len());
        world.pass(late, true);
        let answers = world.held_back.drain(..);
        let answers = answers.map(|(id, reply)| Input::Answered(id, reply));
        let answers: VecDeque<Input> = answers.collect();
        world.give(answers);
    }
    asked_for
}

/// A table that somebody has locked is no single row: a renewal ends with a third of the time of a lease.
#[test]
fn a_refusal_that_takes_long_is_not_taken_apart() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(|call| matches!(call, Call::Renew(_)));
    world.holds_back = Some(|call| matches!(call, Call::Renew(_)));
    let before = world.announced.len();
    let asked_for = answer_late(&mut world, 1_500, 8);
    // In parts, one after the other.
    assert_eq!(asked_for, [16, 4, 4, 4, 4, 1, 1, 1]);
    assert!(world.announced.len() >= before + 2, "it is there");
    world.refuses = None;
    world.holds_back = None;
    world.pass(TTL, true);
    assert_eq!(world.owner.served(), usize::from(PARTITIONS));
    let unrenewable = world.owner.keeper.unrenewable.longest();
    assert!(unrenewable.is_none(), "{unrenewable:?}");
}

/// One row whose refusal takes long, such as that of a trigger that waits: it is found,
/// and the others are renewed all the time.
#[test]
fn a_lease_that_is_refused_late_takes_no_other_with_it() {
    fn is_broken(call: &Call) -> bool {
        matches!(call, Call::Renew(held) if held.iter().any(|(partition, _)| partition.0 == 1))
    }
    let mut world = World::new().free();
    world.pass(5_000, true);
    let given_back = world.given_back;
    world.refuses = Some(is_broken);
    world.holds_back = Some(is_broken);
    let asked_for = answer_late(&mut world, 1_200, 20);
    // Found with the third of these calls, and asked for alone from then on.
    assert_eq!(asked_for[..2], [16, 4]);
    assert_eq!(asked_for[2..], [1; 18]);
    assert!(world.owner.is_trusted(world.now));
    assert_eq!(world.owner.served(), usize::from(PARTITIONS));
    assert_eq!(world.given_back, given_back);
    let trouble = world.owner.trouble(world.now).unwrap();
    assert!(trouble.words.starts_with("the lease of partition 1 cannot"));
}

/// One that was refused by chance is asked for again although another is refused late each time.
#[test]
fn leases_that_are_refused_are_asked_for_in_turns() {
    fn is_lost(call: &Call) -> bool {
        matches!(call, Call::Renew(held) if held.iter().any(|(partition, _)| partition.0 == 3))
    }
    let mut world = World::new().free();
    world.pass(5_000, true);
    // Quickly, each by itself, and then only one of them.
    world.refuses = Some(|call| matches!(call, Call::Renew(_)));
    world.pass(5_000, true);
    assert_eq!(
        world.owner.keeper.unrenewable.alone().len(),
        usize::from(PARTITIONS)
    );
    world.refuses = Some(is_lost);
    world.holds_back = Some(is_lost);
    answer_late(&mut world, 1_200, 12);
    let left = world.owner.keeper.unrenewable.alone();
    assert_eq!(left.collect::<Vec<_>>(), [PartitionId(3)]);
}

/// Time passes, and each answer that is held back comes so many milliseconds after it was asked for.
/// Tells for how long the leases were not trusted.
fn pass_late(world: &mut World, late: Millis, time: Millis) -> Millis {
    pass_late_until(world, |_| late, time, |_| false)
}

/// The same, and it is enough as soon as the world is so.
fn pass_late_until(
    world: &mut World,
    late: impl Fn(&Reply) -> Millis,
    time: Millis,
    is_so: impl Fn(&World) -> bool,
) -> Millis {
    let until = world.now + time;
    let mut asked_at = BTreeMap::new();
    let mut untrusted = 0;
    while world.now < until && !is_so(world) {
        let before = world.now;
        world.pass(50, true);
        let now = world.now;
        let held_back = std::mem::take(&mut world.held_back);
        let (due, rest): (Vec<_>, Vec<_>) = held_back
            .into_iter()
            .partition(|(id, reply)| now - *asked_at.entry(*id).or_insert(now) >= late(reply));
        world.held_back = rest;
        world.give(
            due.into_iter()
                .map(|(id, reply)| Input::Answered(id, reply))
                .collect(),
        );
        if !world.owner.is_trusted(world.now) {
            untrusted += world.now - before;
        }
    }
    untrusted
}

thread_local!(static BROKEN: RefCell<Vec<u16>> = const { RefCell::new(Vec::new()) });

/// Whether a call writes the row of a lease that cannot be written.
fn writes_broken(call: &Call) -> bool {
    let is_one = |it: &PartitionId| BROKEN.with_borrow(|broken| broken.contains(&it.0));
    match call {
        Call::Renew(held) => held.iter().any(|(it, _)| is_one(it)),
        Call::Acquire(wanted) => wanted.iter().any(is_one),
        Call::TakeOver(seen) => seen.iter().any(|it| is_one(&it.partition)),
        _ => false,
    }
}

/// Where one row cannot be written, and the store takes as long to say so as it waits for a lock, every
/// partition is served all the time; with two rows nothing is given back.
#[test]
fn whichever_leases_are_refused_late_the_others_are_served() {
    let alone = (0..PARTITIONS).map(|row| vec![row]);
    let pairs = [[0, 1], [0, 15], [3, 4], [7, 8], [7, 10]];
    for rows in alone.chain(pairs.map(Vec::from)) {
        for late in [1_200, 3_000] {
            let mut world = World::new().free();
            world.pass(5_000, true);
            BROKEN.set(rows.clone());
            world.refuses = Some(writes_broken);
            world.holds_back = Some(writes_broken);
            let untrusted = pass_late(&mut world, late, 8 * TTL);
            // Two rows can each spoil the first part that is asked for; by 3 s all would be given back.
            let bound = if rows.len() > 1 && late > 2_000 {
                3_000
            } else {
                0
            };
            assert!(untrusted <= bound, "{rows:?} after {late} ms: {untrusted}");
            assert_eq!(world.told(|it| matches!(it, Notice::GaveBack)), 0);
            assert_eq!(world.owner.served(), usize::from(PARTITIONS), "{rows:?}");
            let known = world.owner.keeper.unrenewable.alone().map(|it| it.0);
            assert_eq!(known.collect::<Vec<_>>(), rows, "after {late} ms");
        }
    }
}

fn is_of_leases(call: &Call) -> bool {
    matches!(
        call,
        Call::Renew(_) | Call::Acquire(_) | Call::TakeOver(_) | Call::Announce { .. }
    )
}

/// The store was silent until everything was given back, and when it answers again one row cannot be
/// written: the others are taken again soon, whichever it is and however late the refusal comes.
#[test]
fn what_was_given_back_is_taken_without_the_lease_that_is_refused() {
    let others = usize::from(PARTITIONS) - 1;
    for row in 0..PARTITIONS {
        for (late, bound) in [(0, 6_000), (1_200, 20_000), (3_000, 36_000)] {
            let mut world = World::new().free();
            world.pass(5_000, true);
            (world.is_mute, world.away_until) = (true, world.now + 2 * TTL);
            world.pass(2 * TTL, true);
            assert_eq!(world.owner.served(), 0, "given back");
            BROKEN.set(vec![row]);
            world.refuses = Some(writes_broken);
            world.holds_back = Some(is_of_leases);
            let back = world.now;
            let takes = |reply: &Reply| match reply {
                Reply::Failed(_) => late,
                _ => 200,
            };
            pass_late_until(&mut world, takes, 20 * TTL, |it| {
                it.owner.served() == others && it.owner.is_trusted(it.now)
            });
            let after = world.now - back;
            assert!(after <= bound, "{row} refused after {late} ms: {after}");
        }
    }
}

/// Who holds nothing any more suspects nothing, and announces itself as often as anybody.
#[test]
fn suspects_go_with_their_leases() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(|call| matches!(call, Call::Renew(_)));
    world.holds_back = Some(|call| matches!(call, Call::Renew(_)));
    answer_late(&mut world, 1_200, 1);
    assert!(world.owner.keeper.unrenewable.is_in_doubt());
    let other = OwnerId::fresh();
    for lease in &mut world.leases {
        (lease.holder, lease.ttl, lease.epoch) = (Some(other), TTL, Epoch(lease.epoch.0 + 1));
        world.owner.lose(lease.partition);
    }
    (world.refuses, world.holds_back) = (None, None);
    world.pass(5_000, true);
    let before = world.announced.len();
    world.pass(4 * TTL, true);
    assert!(world.owner.keeper.held.is_empty() && !world.owner.keeper.unrenewable.is_in_doubt());
    let announced = world.announced.len() - before;
    assert!(announced <= 16, "{announced} times in a minute");
}

/// Leases that were refused one by one, for a moment, are one call again when the first is renewed,
/// however slow the store is.
#[test]
fn what_was_refused_one_by_one_is_renewed_together() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(|call| matches!(call, Call::Renew(_)));
    world.pass(5_000, true);
    let known = world.owner.keeper.unrenewable.alone().len();
    assert_eq!(known, usize::from(PARTITIONS));
    world.refuses = None;
    world.holds_back = Some(|call| matches!(call, Call::Renew(_)));
    assert_eq!(pass_late(&mut world, 900, 4 * TTL), 0);
    assert_eq!(world.owner.served(), usize::from(PARTITIONS));
    assert_eq!(
        world.owner.keeper.unrenewable.longest().map(|it| it.0),
        None
    );
}

/// A lease that was handed over while its renewal was under way is not called lost.
#[test]
fn what_was_handed_over_meanwhile_is_not_lost() {
    const GIVEN: PartitionId = PartitionId(3);
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.holds_back = Some(|call| matches!(call, Call::Renew(_)));
    while world.held_back.is_empty() {
        world.pass(100, true);
    }
    world.owner.let_go(world.now, GIVEN, None);
    world.pass(300, true);
    assert!(!world.owner.keeper.held.contains_key(&GIVEN));
    // The store has given it up before it came to the renewal.
    let (id, reply) = world.held_back.remove(0);
    let Reply::Renewed(mut renewed) = reply else {
        panic!("{reply:?}");
    };
    renewed.retain(|it| *it != GIVEN);
    world.give([Input::Answered(id, Reply::Renewed(renewed))].into());
    assert_eq!(world.told(|it| matches!(it, Notice::Lost(_))), 0);
}
