//! The scenarios are those that are documented.

use std::collections::BTreeSet;

use super::*;

fn shape(scenario: Scenario) -> (&'static str, usize, usize, u32) {
    let Scenario {
        name,
        executions,
        actions,
        limit,
        ..
    } = scenario;
    (name, executions, actions, limit)
}

#[test]
fn the_scenarios_are_those_that_are_documented() {
    assert_eq!(shape(Scenario::spread()), ("spread", 20_000, 100, 10));
    assert_eq!(shape(Scenario::serial()), ("serial", 2_000, 1, 1));
    assert_eq!(shape(Scenario::steady()), ("steady", 4_000, 20, 10));
    let [hot, ten, hundred] = Scenario::hot();
    assert_eq!(shape(hot), ("hot-1", 2_000, 1, 1));
    assert_eq!(shape(ten), ("hot-10", 10_000, 1, 10));
    assert_eq!(shape(hundred), ("hot-100", 20_000, 1, 100));
    assert_eq!(shape(Scenario::keys()), ("keys", 200_000, 100_000, 1));
    assert_eq!(shape(Scenario::backlog()), ("backlog", 1_000_000, 100, 10));
    assert_eq!(
        shape(Scenario::duplicates()),
        ("duplicates", 20_000, 100, 10)
    );
    assert_eq!(shape(Scenario::busy()), ("busy", 16_000, 1, 40));
    let [five, ten] = Scenario::seed();
    assert_eq!(shape(five), ("seed-1000", 1_000, 1, 5));
    assert_eq!(shape(ten), ("seed-10000", 10_000, 1, 10));
    assert!(Scenario::backlog().held && !Scenario::spread().held);
    assert_eq!(Scenario::duplicates().doubled, Some(10));
    let seven = Scenario::spread().with_executions(7);
    assert_eq!((seven.executions, seven.actions), (7, 4));
    let wide = Scenario::spread().with_actions(1_000).with_limit(3);
    assert_eq!(shape(wide), ("spread", 20_000, 1_000, 3));
    assert_eq!(seven.with_actions(9).actions, 4);
}

#[test]
fn work_is_what_the_action_does_with_its_parameters() {
    let (busy, spread) = (Scenario::busy(), Scenario::spread());
    let spec = &busy.specs()[0];
    assert_eq!(spec.check(), Ok(()));
    assert_eq!(spec.run, Run::Builtin(Builtin::Sleep));
    assert_eq!(busy.parameters().unwrap().get(), "{\"seconds\":0.05}");
    assert!(spread.parameters().is_none());
}

#[test]
fn an_action_is_known_by_its_ref() {
    let spread = Scenario::spread();
    for action in [0, 7, 99] {
        assert_eq!(
            spread.action_named(&spread.action_ref(action)),
            Some(action)
        );
    }
    for other in [
        "bench.spread-101",
        "bench.spread-000",
        "bench.spread-1",
        "bench.serial-001",
        "core.noop",
    ] {
        assert_eq!(spread.action_named(other), None, "{other}");
    }
    let keys = Scenario::keys();
    assert_eq!(keys.action_named("bench.keys-100000"), Some(99_999));
}

#[test]
fn with_policies_each_action_has_all_priorities_and_many_users_and_keys() {
    let policies = Scenario::policies();
    assert_eq!(shape(Scenario::policies()), ("policies", 20_000, 100, 10));
    for spec in policies.specs() {
        assert_eq!(spec.check(), Ok(()), "{}", spec.action_ref);
    }
    let of_first = (0..policies.executions).filter(|index| policies.action_of(*index) == 0);
    let askers: Vec<Asker> = of_first.filter_map(|index| policies.asker(index)).collect();
    let different = |of: fn(&Asker) -> String| askers.iter().map(of).collect::<BTreeSet<_>>().len();
    assert_eq!(different(|asker| asker.priority.to_string()), 5);
    assert_eq!(different(|asker| asker.user.clone()), 100);
    assert_eq!(different(|asker| asker.key.clone()), 200);
    assert_eq!(Scenario::spread().asker(7), None);
}

#[test]
fn an_open_loop_keeps_its_schedule_to_the_nanosecond() {
    let steady = Scenario::steady();
    let due = |index| steady.due(index).unwrap();
    assert_eq!(due(0), Duration::ZERO);
    assert_eq!(due(1), Duration::from_millis(5));
    assert_eq!(due(3_999), Duration::from_millis(19_995));
    let thirds = Scenario {
        pace: Pace::Open { per_second: 3 },
        ..Scenario::steady()
    };
    assert_eq!(thirds.due(1), Some(Duration::from_nanos(333_333_333)));
    assert_eq!(thirds.due(3_000_000), Some(Duration::from_secs(1_000_000)));
    assert_eq!(Scenario::spread().due(5), None);
}

#[test]
fn actions_take_turns_and_take_everything() {
    let spread = Scenario::spread();
    assert_eq!(spread.action_of(0), spread.action_of(100));
    assert_eq!(spread.action_ref(spread.action_of(99)), "bench.spread-100");
    let specs = spread.specs();
    assert_eq!(specs.len(), 100);
    for spec in &specs {
        assert_eq!(spec.check(), Ok(()), "{}", spec.action_ref);
        assert_eq!(spec.policy.concurrency.limit, Some(10));
        assert_eq!(spec.policy.queue.max_length, Some(20_000));
    }
    assert_eq!(specs[0].action_ref.as_str(), "bench.spread-001");
}
