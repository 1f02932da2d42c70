//! Histories of actions whose starts are counted, and whose acceptances are.

use attune_core::{Demand, Flow, GroupKey};
use attune_record::{QuotaInForce, RateInForce};

use super::tests::{NORMAL, assert_breaks, assert_clean};
use super::world::World;
use super::*;

const RULE: i64 = 7;
const MARK: i64 = 9;
const SECOND: i64 = 1_000_000_000;

/// Five executions at limit 1, each of which runs for a second; of two users in turns.
fn five() -> World {
    let mut world = World::new(1);
    let ids = [NORMAL; 5].map(|priority| world.submit(priority));
    for id in ids {
        world.wait(SECOND);
        world.finish(id);
    }
    world.drain();
    let mut number = 0;
    for record in &mut world.records {
        match record {
            Record::Accepted { at, demand, .. } => {
                *at = None;
                *demand = Some(Demand {
                    rule: RULE,
                    group: GroupKey::default(),
                    cost: 1,
                    user: None,
                    rate: GroupKey([number % 2 + 1; 16]),
                    flow: Flow::default(),
                });
                number += 1;
            }
            Record::Granted {
                at, t_ns, demands, ..
            } => (*at, *demands) = (Some(*t_ns / 1_000_000), Some(RULE)),
            _ => {}
        }
    }
    world
}

/// The same under a rate, or an interval.
fn at_rate(mut world: World, max: u32, window_ms: i64, mark: i64) -> World {
    for record in &mut world.records {
        if let Record::Granted {
            rate, interval_ms, ..
        } = record
        {
            if max == 0 {
                *interval_ms = Some(window_ms);
            } else {
                *rate = Some(RateInForce {
                    max,
                    window_ms,
                    mark,
                });
            }
        }
    }
    world
}

#[test]
fn i8_more_starts_than_the_rate_allows() {
    for (max, window_ms) in [(1, 1_000), (2, 2_000), (4, 4_000), (0, 1_000)] {
        assert_clean(&at_rate(five(), max, window_ms, 0));
        assert_breaks(&at_rate(five(), max, window_ms + 1, 0), Promise::I8);
    }
    // Of each user one starts every other second.
    assert_clean(&at_rate(five(), 1, 2_000, MARK));
    assert_breaks(&at_rate(five(), 1, 2_001, MARK), Promise::I8);
}

/// What was counted before under another window may be forgotten.
#[test]
fn a_window_that_has_changed_accuses_nobody() {
    let mut world = at_rate(five(), 1, 5_000, 0);
    let mut grants = world.records.iter_mut().filter_map(|record| match record {
        Record::Granted { rate, .. } => rate.as_mut(),
        _ => None,
    });
    grants.next().unwrap().window_ms = 1_000;
    drop(grants);
    assert_clean(&world);
}

/// An owner takes over in the middle, whose clock is half a second behind.
fn taken_over(behind_ms: i64) -> World {
    let mut world = five();
    let mut grants = 0;
    for record in &mut world.records {
        match record {
            Record::Granted { at: Some(at), .. } => {
                grants += 1;
                if grants > 2 {
                    *at -= behind_ms;
                }
            }
            Record::Acquired { epoch, .. } => {
                assert_eq!(epoch.0, 1);
            }
            _ => {}
        }
    }
    world
}

#[test]
fn i8_an_owner_whose_time_goes_back() {
    assert_breaks(&at_rate(taken_over(500), 1, 1_000, 0), Promise::I8);
}

/// The owner says that it was time, and the program shows that it was not.
#[test]
fn i8_a_program_that_begins_before_its_rate_allows() {
    let mut world = at_rate(five(), 1, 1_000, 0);
    assert_clean(&world);
    let begun = world.records.iter_mut().filter_map(|record| match record {
        Record::Start { t_ns, .. } | Record::ProgramStart { t_ns, .. } => Some(t_ns),
        _ => None,
    });
    for t_ns in begun {
        *t_ns -= 3 * SECOND;
    }
    let report = check(&world.records, Some(world.lines()));
    let broken = report.violations.iter();
    let mut said = broken.filter(|violation| violation.promise == Promise::I8);
    let said = said.next().expect("it began too early");
    assert!(said.what.contains("its program"), "{}", said.what);
}

/// The same executions under a quota.
fn with_quota(max: u32, until: i64, key: impl Fn(u8) -> u8) -> World {
    let mut world = five();
    let mut number = 0;
    for record in &mut world.records {
        if let Record::Accepted { at, quotas, .. } = record {
            *at = Some(1_000);
            quotas.push(QuotaInForce {
                window: 0,
                until,
                max,
                mark: MARK,
                key: GroupKey([key(number); 16]),
            });
            number += 1;
        }
    }
    world
}

#[test]
fn i8_more_acceptances_than_a_quota_allows() {
    assert_clean(&with_quota(5, 2_000, |_| 1));
    assert_breaks(&with_quota(4, 2_000, |_| 1), Promise::I8);
    assert_clean(&with_quota(3, 2_000, |number| number % 2));
    assert_breaks(&with_quota(2, 2_000, |number| number % 2), Promise::I8);
    assert_breaks(&with_quota(5, 1_000, |_| 1), Promise::I8);
}

/// Of a day and of its first hour, counted for the same: each has its own number.
#[test]
fn windows_that_begin_together_are_counted_apart() {
    const HOUR: i64 = 3_600_000;
    let mut world = five();
    for record in &mut world.records {
        if let Record::Accepted { at, quotas, .. } = record {
            *at = Some(1_000);
            *quotas = [(5, HOUR), (9, 24 * HOUR)]
                .map(|(max, until)| QuotaInForce {
                    window: 0,
                    until,
                    max,
                    mark: 0,
                    key: GroupKey::default(),
                })
                .to_vec();
        }
    }
    assert_clean(&world);
    for record in &mut world.records {
        if let Record::Accepted { quotas, .. } = record {
            quotas[0].max = 4;
        }
    }
    assert_breaks(&world, Promise::I8);
}
