//! Broken histories of what is granted ahead of its slot.

use attune_core::{Epoch, ExecutionId, WorkerId};
use attune_record::{HandedOn, Record};
use uuid::Uuid;

use crate::check::Promise;
use crate::check::tests::{NORMAL, assert_clean, broken, findings};
use crate::check::tests_groups::demand;
use crate::check::world::World;

/// Where the first record is of which this is true.
fn place(world: &World, is_it: impl Fn(&Record) -> bool) -> usize {
    let mut records = world.records.iter();
    records.position(is_it).expect("it is there")
}

fn is_granted(record: &Record, wanted: ExecutionId) -> bool {
    matches!(record, Record::Granted { execution_id, .. } if *execution_id == wanted)
}

fn is_handed_on(record: &Record, wanted: ExecutionId) -> bool {
    matches!(record, Record::HandedOn(one) if one.execution_id == wanted)
}

/// The record of its grant, as of one ahead of its slot, and the record that it has its slot.
fn grant_ahead(world: &World, id: ExecutionId) -> (Record, Record) {
    let at = place(world, |record| is_granted(record, id));
    let mut granted = world.records[at].clone();
    let Record::Granted {
        execution_id,
        action_id,
        attempt,
        epoch,
        round,
        t_ns,
        ahead,
        ..
    } = &mut granted
    else {
        panic!("{granted:?}");
    };
    let handed_on = Record::HandedOn(HandedOn {
        execution_id: *execution_id,
        action_id: *action_id,
        attempt: *attempt,
        epoch: *epoch,
        round: *round,
        t_ns: *t_ns,
    });
    (*ahead, *t_ns) = (true, 0);
    (granted, handed_on)
}

/// Four executions of which the second and the third are granted ahead, before the first ends.
fn handed_on() -> (World, Vec<ExecutionId>) {
    let mut world = World::new(1);
    let ids: Vec<_> = (0..4).map(|_| world.submit(NORMAL)).collect();
    world.drain();
    let ended = |record: &Record| matches!(record, Record::Ended { execution_id, .. } if *execution_id == ids[0]);
    for id in [ids[1], ids[2]] {
        let at = place(&world, |record| is_granted(record, id));
        let (granted, handed_on) = grant_ahead(&world, id);
        world.records[at] = handed_on;
        let first = place(&world, ended);
        world.records.insert(first, granted);
    }
    (world, ids)
}

/// Checks that this promise is among those that are broken: whoever has a slot that is another one's is missing from
/// the counts, too.
fn breaks(world: &World, promise: Promise) {
    for found in findings(world) {
        let broken = broken(&found);
        assert!(broken.contains(&promise), "{:#?}", found.violations);
    }
}

#[test]
fn who_stands_ahead_is_handed_its_slot() {
    assert_clean(&handed_on().0);
}

#[test]
fn i3_a_slot_that_is_handed_to_a_later_one() {
    let (mut world, ids) = handed_on();
    let second = place(&world, |record| is_handed_on(record, ids[1]));
    let third = place(&world, |record| is_handed_on(record, ids[2]));
    world.records.swap(second, third);
    breaks(&world, Promise::I3);
}

#[test]
fn i3_who_is_granted_ahead_out_of_order() {
    let (mut world, ids) = handed_on();
    let second = place(&world, |record| is_granted(record, ids[1]));
    let third = place(&world, |record| is_granted(record, ids[2]));
    world.records.swap(second, third);
    breaks(&world, Promise::I3);
}

#[test]
fn i6_a_slot_that_nobody_is_handed() {
    let (mut world, ids) = handed_on();
    let second = place(&world, |record| is_handed_on(record, ids[1]));
    world.records.remove(second);
    breaks(&world, Promise::I6);
}

#[test]
fn i2_a_slot_that_is_handed_on_before_it_is_free() {
    let (mut world, ids) = handed_on();
    let second = place(&world, |record| is_handed_on(record, ids[1]));
    let handed_on = world.records.remove(second);
    let third = place(&world, |record| is_granted(record, ids[2]));
    world.records.insert(third + 1, handed_on);
    breaks(&world, Promise::I2);
}

/// Three executions of which the second is granted ahead of its slot at limit 1, and has one as soon as the limit
/// is 2, while the first runs.
fn handed_on_by_a_raised_limit() -> (World, ExecutionId) {
    let mut world = World::new(1);
    let ids: Vec<_> = (0..3).map(|_| world.submit(NORMAL)).collect();
    world.set_limit(2);
    world.drain();
    let at = place(&world, |record| is_granted(record, ids[1]));
    let (mut granted, handed_on) = grant_ahead(&world, ids[1]);
    if let Record::Granted { limit, .. } = &mut granted {
        *limit = Some(1);
    }
    world.records[at] = handed_on;
    let raised = place(&world, is_raised);
    world.records.insert(raised, granted);
    (world, ids[1])
}

fn is_raised(record: &Record) -> bool {
    matches!(record, Record::Limit { limit: Some(2), .. })
}

#[test]
fn whoever_is_handed_a_slot_runs_under_the_limits_of_then() {
    assert_clean(&handed_on_by_a_raised_limit().0);
}

#[test]
fn i2_a_slot_that_is_handed_on_before_the_limit_is_raised() {
    let (mut world, id) = handed_on_by_a_raised_limit();
    let raised = place(&world, is_raised);
    let handed_on = place(&world, |record| is_handed_on(record, id));
    let raised = world.records.remove(raised);
    world.records.insert(handed_on, raised);
    for found in findings(&world) {
        let at_once = |what: &str| what.starts_with("2 runs of action");
        let of_programs = found.violations.iter().any(|it| at_once(&it.what));
        assert!(of_programs, "{:#?}", found.violations);
    }
}

/// Whoever asked for a lower limit was told that it is in force, and a worker hands slots on by the one of before.
#[test]
fn i2_a_slot_that_is_handed_on_after_a_lower_limit_is_in_force() {
    for is_ahead in [false, true] {
        let mut world = World::new(2);
        world.set_limit(2);
        let ids: Vec<_> = (0..4).map(|_| world.submit(NORMAL)).collect();
        let lower = Uuid::from_u128(1_000);
        world.ask_limit(lower, Some(1));
        world.limit_is_stored(lower, true);
        let told = world.records.len();
        for id in &ids {
            world.finish(*id);
        }
        if is_ahead {
            let at = place(&world, |record| is_granted(record, ids[2]));
            let (granted, handed_on) = grant_ahead(&world, ids[2]);
            world.records[at] = handed_on;
            world.records.insert(told - 2, granted);
        }
        for found in findings(&world) {
            let mut whats = found.violations.iter().map(|it| it.what.as_str());
            let more = "2 runs of action 7 at once, and nobody asked for more than 1";
            assert_eq!(whats.any(|what| what == more), is_ahead, "{found:#?}");
        }
    }
}

#[test]
fn i2_who_is_granted_ahead_to_another_worker() {
    let (mut world, ids) = handed_on();
    let second = place(&world, |record| is_granted(record, ids[1]));
    let Record::Granted { worker, .. } = &mut world.records[second] else {
        panic!("it was granted");
    };
    *worker = Some(WorkerId::fresh());
    breaks(&world, Promise::I2);
}

#[test]
fn i3_a_slot_that_is_given_beside_whoever_stands_ahead() {
    let (mut world, ids) = handed_on();
    let second = place(&world, |record| is_handed_on(record, ids[1]));
    let fourth = place(&world, |record| is_granted(record, ids[3]));
    world.records.swap(second, fourth);
    breaks(&world, Promise::I3);
}

/// As [`handed_on`] with a limit of one of each group, where the limit is raised to 2 in the round in which the first
/// ends.
fn handed_on_in_groups(groups: [u8; 4]) -> (World, Vec<ExecutionId>) {
    let (mut world, ids) = handed_on();
    world.group(Some(1), |number| demand(groups[number], 1));
    let limits = place(&world, |record| matches!(record, Record::Limit { .. }));
    let mut raised = world.records[limits].clone();
    let ahead = place(&world, |record| is_granted(record, ids[1]));
    for place in ahead..world.records.len() {
        if let Record::Granted { limit, .. } = &mut world.records[place] {
            *limit = Some(2);
        }
    }
    let Record::Granted {
        round: now,
        t_ns: at,
        ..
    } = world.records[ahead]
    else {
        panic!("it was granted");
    };
    if let Record::Limit {
        limit, round, t_ns, ..
    } = &mut raised
    {
        (*limit, *round, *t_ns) = (Some(2), now, at);
    }
    world.records.insert(ahead, raised);
    (world, ids)
}

/// Limits have changed: those who stand ahead lack room in their group, and the last one, of another, would have it.
#[test]
fn nobody_passes_who_stands_ahead_and_lacks_room_in_its_group() {
    let (mut world, ids) = handed_on_in_groups([1, 1, 1, 2]);
    // Until the last of them has its slot.
    let ended = place(
        &world,
        |record| matches!(record, Record::Ended { execution_id, .. } if *execution_id == ids[1]),
    );
    world.records.truncate(ended);
    for found in findings(&world) {
        let broken = broken(&found);
        assert!(!broken.contains(&Promise::I6), "{:#?}", found.violations);
    }
}

#[test]
fn i6_a_slot_that_nobody_is_handed_though_all_have_room_in_their_groups() {
    let (mut world, ids) = handed_on_in_groups([1, 1, 2, 3]);
    let second = place(&world, |record| is_handed_on(record, ids[1]));
    world.records.remove(second);
    breaks(&world, Promise::I6);
}

/// As [`handed_on`], and an owner that came after the grants found the second and the third in this order.
fn handed_on_by_another(found: [usize; 2]) -> World {
    let mut world = World::new(1);
    let ids: Vec<_> = (0..4).map(|_| world.submit(NORMAL)).collect();
    let before = world.records.len();
    world.takeover();
    let held = |record: &Record| matches!(record, Record::Held { .. });
    let at = place(&world, held);
    for id in found.map(|n| ids[n]) {
        let mut other = world.records[at].clone();
        if let Record::Held {
            execution_id,
            ahead,
            ..
        } = &mut other
        {
            (*execution_id, *ahead) = (id, true);
        }
        world.records.push(other);
    }
    // What it found comes before its counts.
    let counts = world.records.split_off(at + 1);
    let (counts, found) = counts.split_at(counts.len() - 2);
    world.records.extend(found.iter().chain(counts).cloned());
    world.drain();
    for (n, id) in [ids[1], ids[2]].into_iter().enumerate() {
        let at = place(&world, |record| is_granted(record, id));
        let (mut granted, handed_on) = grant_ahead(&world, id);
        world.records[at] = handed_on;
        if let Record::Granted { epoch, .. } = &mut granted {
            *epoch = Epoch(1);
        }
        world.records.insert(before + n, granted);
    }
    world
}

#[test]
fn those_that_a_later_owner_finds_are_handed_their_slots_by_their_grants() {
    assert_clean(&handed_on_by_another([1, 2]));
    assert_clean(&handed_on_by_another([2, 1]));
}

#[test]
fn i3_a_later_owner_hands_slots_on_as_it_finds_them() {
    let mut world = handed_on_by_another([2, 1]);
    let handed_on = |record: &Record| matches!(record, Record::HandedOn(_));
    let first = place(&world, handed_on);
    let second = world.records.iter().rposition(handed_on);
    world.records.swap(first, second.expect("it is there"));
    breaks(&world, Promise::I3);
}

/// Its owner was told that the outcome of the commit was unknown, and so noted nothing.
#[test]
fn whoever_was_granted_ahead_without_a_note_is_before_nobody() {
    let mut world = handed_on_by_another([1, 2]);
    let third = place(&world, |record| {
        matches!(record, Record::Held { ahead: true, .. })
    });
    let ids: Vec<ExecutionId> = world.records[third..]
        .iter()
        .filter_map(|record| match record {
            Record::Held {
                execution_id,
                ahead: true,
                ..
            } => Some(*execution_id),
            _ => None,
        })
        .collect();
    let granted = place(&world, |record| is_granted(record, ids[1]));
    world.records.remove(granted);
    for found in findings(&world) {
        assert!(!broken(&found).contains(&Promise::I3), "{found:#?}");
    }
}
