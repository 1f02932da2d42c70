//! Random histories: good ones are never accused, broken ones are.

use attune_core::{Epoch, OrderRule, Priority, RequestId, Seq, Status, WorkerId};
use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};
use proptest::test_runner::TestCaseError;
use uuid::Uuid;

use super::facts::Key;
use super::tests::findings;
use super::world::{SECOND, World};
use super::*;
use attune_record::FaultPhase;

/// What happens in a random history.
fn steps() -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec((0..18_u8, any::<u8>()), 10..60)
}

/// With steps about as long as a few of the other things that happen.
fn order(pick: u8) -> OrderRule {
    match pick % 4 {
        0 => OrderRule::Priority,
        1 => OrderRule::Fifo,
        _ => OrderRule::Ageing {
            step: u32::from(pick) + 1,
        },
    }
}

fn random(limit: u32, steps: &[(u8, u8)]) -> World {
    let mut world = World::new(limit);
    for (step, pick) in steps {
        let holder = world.holders.keys().nth(usize::from(*pick) % 3).copied();
        let waiting = world
            .waiting
            .iter()
            .nth(usize::from(*pick) % 3)
            .map(|w| w.1);
        match (step, holder, waiting) {
            (0..=4, ..) => {
                let priority = Priority::ALL[usize::from(*pick) % 5];
                world.submit(priority);
            }
            (5..=7, Some(id), _) => world.finish(id),
            (8, Some(id), _) => world.lose(id),
            (9, _, Some(id)) => world.cancel(id),
            (10, ..) => world.set_limit(u32::from(*pick % 4) + 1),
            (11, ..) => world.takeover(),
            (12, ..) => world.write_stats(),
            (13, ..) => world.kill_worker(i64::from(*pick % 8) * SECOND),
            (14, ..) => world.refuse(RequestId(Uuid::from_u128(u128::from(*pick) + 1))),
            (15, ..) => {
                world.fault(FaultPhase::Begin);
                world.kill_worker(i64::from(*pick) * SECOND);
                world.fault(FaultPhase::End);
            }
            (16, ..) => world.set_order(order(*pick)),
            (17, ..) => world.returning = u32::from(*pick % 3) + 1,
            _ => {}
        }
    }
    world.drain();
    world.wait(20 * SECOND);
    world.stop();
    world
}

/// Whether a record is of this role, apart from executors.
fn is_of(role: u8, record: &Record) -> bool {
    let name = ["api", "completion-listener", "stats", "worker"][usize::from(role % 4)];
    match record {
        Record::Process { role, .. } => role == name,
        Record::Answered { .. } => name == "api",
        Record::Forwarded { .. } | Record::DeadLettered { .. } => name == "completion-listener",
        Record::StatsWritten { .. } => name == "stats",
        Record::Taken { .. } | Record::End { .. } => name == "worker",
        _ => false,
    }
}

/// Forgets what comes after the first so many of these records.
fn lose(world: &mut World, kept: u16, wanted: impl Fn(&Record) -> bool) {
    let count = world.records.iter().filter(|record| wanted(record)).count();
    let kept = usize::from(kept) % count.max(1);
    let mut seen = 0;
    world.records.retain(|record| {
        let is_wanted = wanted(record);
        seen += usize::from(is_wanted);
        !is_wanted || seen <= kept
    });
}

/// The epoch of what an owner recorded.
pub(super) fn epoch_of(record: &Record) -> Option<Epoch> {
    match record {
        Record::Acquired { epoch, .. }
        | Record::Accepted { epoch, .. }
        | Record::Held { epoch, .. }
        | Record::Granted { epoch, .. }
        | Record::Ended { epoch, .. }
        | Record::Revoked { epoch, .. }
        | Record::Limit { epoch, .. }
        | Record::Totals { epoch, .. } => Some(*epoch),
        _ => None,
    }
}

/// Breaks one thing; `None` when there is nothing of the kind.
fn mutate(world: &mut World, kind: u8, pick: u16) -> Option<Promise> {
    let all = |wanted: fn(&Record) -> bool| {
        let places: Vec<usize> = (0..world.records.len())
            .filter(|place| wanted(&world.records[*place]))
            .collect();
        (!places.is_empty()).then(|| places[usize::from(pick) % places.len()])
    };
    let row = *world
        .rows
        .keys()
        .nth(usize::from(pick) % world.rows.len().max(1))?;
    match kind {
        0 => {
            world.rows.remove(&row);
            Some(Promise::I1)
        }
        1 => {
            let (end, start) = *world
                .handoffs
                .get(usize::from(pick) % world.handoffs.len().max(1))?;
            let (Record::ProgramEnd { t_ns, .. } | Record::ProcessExit { t_ns, .. }) =
                world.records[end]
            else {
                return None;
            };
            if let Record::ProgramStart { t_ns: start, .. } = &mut world.records[start] {
                *start = t_ns - 1;
            }
            Some(Promise::I2)
        }
        2 => {
            let place = all(|record| matches!(record, Record::Granted { .. }))?;
            if let Record::Granted { limit, .. } = &mut world.records[place] {
                *limit = Some(0);
            }
            Some(Promise::I2)
        }
        3 => {
            world.rows.get_mut(&row)?.status = Status::Requested;
            Some(Promise::I4)
        }
        4 => {
            let place = all(|record| matches!(record, Record::Ended { .. }))?;
            let again = world.records[place].clone();
            world.records.insert(place, again);
            Some(Promise::I5)
        }
        5 => {
            let place = all(|record| matches!(record, Record::ProgramStart { .. }))?;
            let again = world.records[place].clone();
            world.records.insert(place, again);
            Some(Promise::I5)
        }
        6 => {
            let place = all(|record| matches!(record, Record::Totals { .. }))?;
            if let Record::Totals { expired, .. } = &mut world.records[place] {
                *expired += 1;
            }
            Some(Promise::I7)
        }
        8 => {
            let place = all(|record| matches!(record, Record::Forwarded { .. }))?;
            let mut again = world.records[place].clone();
            if let Record::Forwarded { status, .. } = &mut again {
                *status = Status::TimedOut;
            }
            world.records.push(again);
            Some(Promise::I5)
        }
        9 => {
            let place = all(|record| matches!(record, Record::Forwarded { .. }))?;
            let Record::Forwarded { execution_id, .. } = world.records[place] else {
                return None;
            };
            world.records.retain(|record| {
                !matches!(record, Record::Forwarded { execution_id: id, .. } | Record::End { execution_id: id, .. }
                    if *id == execution_id)
            });
            Some(Promise::I5)
        }
        10 => {
            let counted = |record: &Record| match record {
                Record::Totals {
                    epoch,
                    enqueued,
                    completed,
                    ..
                } => Some((*epoch, enqueued + completed)),
                Record::StatsWritten {
                    version,
                    enqueued,
                    completed,
                    ..
                } => Some((Seq(*version).epoch(), enqueued + completed)),
                _ => None,
            };
            let totals: Vec<_> = world
                .records
                .iter()
                .filter(|record| matches!(record, Record::Totals { .. }))
                .filter_map(counted)
                .collect();
            let last_epoch = totals.iter().map(|(epoch, _)| *epoch).max();
            // Neither what an owner has only loaded, which may be anything that was not recorded,
            // nor what it counted last before it was killed: its last record may be lost.
            let is_sure = |record: &Record| {
                counted(record).is_some_and(|(epoch, count)| {
                    let mut of_it = totals.iter().filter(|(of, _)| *of == epoch);
                    let is_later = of_it.clone().any(|(_, before)| *before < count);
                    let ended_well = Some(epoch) == last_epoch;
                    is_later && (ended_well || of_it.any(|(_, after)| *after > count))
                })
            };
            for record in world.records.iter_mut().rev() {
                let is_sure = is_sure(record);
                if let Record::StatsWritten { waiting, .. } = record
                    && is_sure
                {
                    *waiting += 1;
                    return Some(Promise::I7);
                }
            }
            None
        }
        13 => {
            // Nobody has ever asked for such a long step.
            let place = all(|record| matches!(record, Record::Granted { .. }))?;
            let Record::Granted {
                order,
                execution_id: id,
                ..
            } = &mut world.records[place]
            else {
                return None;
            };
            *order = OrderRule::Ageing { step: 1_000 };
            // Nothing is known of what was asked for before the first change.
            let id = *id;
            let mut known = world
                .records
                .iter()
                .skip_while(|record| !matches!(record, Record::ApplyOk { .. }));
            known
                .any(|record| matches!(record, Record::Accepted { execution_id, .. } if *execution_id == id))
                .then_some(Promise::I3)
        }
        14..=18 => break_a_start(world, kind, usize::from(pick)),
        11 => {
            world.rows.get_mut(&row)?.request_id = Some(RequestId(Uuid::nil()));
            Some(Promise::I1)
        }
        _ => {
            let place = all(|record| matches!(record, Record::SubmitOk { .. }))?;
            if let Record::SubmitOk { execution_id, .. } = &mut world.records[place] {
                execution_id.0 += 1 << 30;
            }
            Some(Promise::I1)
        }
    }
}

/// Somebody begins what it may not, or began what is said not to have begun.
fn break_a_start(world: &mut World, kind: u8, pick: usize) -> Option<Promise> {
    let is_known = |key: &Key| key.0.seq().epoch() == Epoch(world.epoch);
    let taken = world.records.iter().enumerate();
    let taken = taken.filter_map(|(place, record)| match record {
        Record::Taken {
            execution_id,
            attempt,
            ..
        } => Some((place, (*execution_id, *attempt))),
        _ => None,
    });
    // That a grant is missing shows only where no owner was killed since the acceptance.
    let mut taken: Vec<_> = taken
        .filter(|(_, key)| kind != 18 || is_known(key))
        .collect();
    if kind == 16 {
        taken.retain(|(_, key)| revoked(world, *key).is_some());
    }
    let (place, key) = *taken.get(pick % taken.len().max(1))?;
    let of = |record: &Record| match record {
        Record::Granted {
            execution_id,
            attempt,
            ..
        } => (*execution_id, *attempt) == key,
        _ => false,
    };
    let grant = world.records.iter().position(of)?;
    match kind {
        14 => {
            if let Record::Granted { worker, .. } = &mut world.records[grant] {
                *worker = Some(WorkerId(Uuid::from_u128(1)));
            }
        }
        15 => {
            let again = world.records[place].clone();
            world.records.push(again);
        }
        16 => {
            let revoked = revoked(world, key)?;
            if let Record::Revoked { never_begun, .. } = &mut world.records[revoked] {
                *never_begun = true;
            }
        }
        17 => {
            if let (Record::Granted { t_ns: at, .. }, Record::Taken { t_ns, .. }) =
                (world.records[grant].clone(), &mut world.records[place])
            {
                *t_ns = at - 1;
            }
        }
        _ => {
            world.records.remove(grant);
        }
    }
    Some(Promise::I5)
}

/// Where a slot was taken back from an attempt.
fn revoked(world: &World, key: Key) -> Option<usize> {
    let of = |record: &Record| match record {
        Record::Revoked {
            execution_id,
            attempt,
            ..
        } => (*execution_id, *attempt) == key,
        _ => false,
    };
    world.records.iter().position(of)
}

proptest! {
    #[test]
    fn a_queue_that_keeps_its_promises_is_never_accused(limit in 1..4_u32, steps in steps()) {
        for findings in findings(&random(limit, &steps)) {
            prop_assert_eq!(findings.violations, []);
        }
    }

    #[test]
    fn the_lost_records_of_killed_owners_accuse_nobody(
        limit in 1..4_u32, steps in steps(), epoch in any::<i64>(), kept in any::<u16>()
    ) {
        let mut world = random(limit, &steps);
        let last = world.records.iter().filter_map(epoch_of).max().unwrap().0;
        // All but the last may have been killed; their files end early.
        if last > 1 {
            let epoch = Epoch(epoch.rem_euclid(last - 1) + 1);
            lose(&mut world, kept, |record| epoch_of(record) == Some(epoch));
        }
        for findings in findings(&world) {
            prop_assert_eq!(findings.violations, []);
        }
    }

    #[test]
    fn the_lost_records_of_other_killed_processes_accuse_nobody(
        limit in 1..4_u32, steps in steps(), role in 0..4_u8, kept in any::<u16>(),
        other in 0..4_u8, other_kept in any::<u16>()
    ) {
        let mut world = random(limit, &steps);
        lose(&mut world, kept, |record| is_of(role, record));
        lose(&mut world, other_kept, |record| is_of(other, record));
        for findings in findings(&world) {
            prop_assert_eq!(findings.violations, []);
        }
    }

    #[test]
    fn one_thing_broken_is_noticed(limit in 1..4_u32, steps in steps(), kind in 0..19_u8, pick in any::<u16>()) {
        let mut world = random(limit, &steps);
        let Some(promise) = mutate(&mut world, kind, pick) else {
            return Err(TestCaseError::reject("nothing to break"));
        };
        let findings = check(&world.records, Some(world.lines()));
        prop_assert!(findings.count(promise) > 0, "{promise}: {:#?}", findings.violations);
    }
}
