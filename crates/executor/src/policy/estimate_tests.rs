//! Scenes that few queues are in: what is played on is bounded, and what it leads to is no worse for it.

use attune_core::Priority;

use super::*;
use crate::policy::Ran;

/// So many have ended, one in so many milliseconds, each after so long.
fn ended(between: Millis, held: Millis) -> RunTimes {
    let mut times = RunTimes::default();
    for n in 0..300 {
        let run = Ran {
            held,
            priority: Priority::High,
            accepted: n * between,
            back: None,
        };
        times.note(n * between, run);
    }
    times
}

fn holders(groups: usize) -> Vec<Held> {
    let held = |group| Held {
        age: Some(0),
        cost: 1,
        group,
    };
    (0..groups).map(held).collect()
}

/// Whether it is given up to play a scene on, after which it is estimated all the same.
fn is_added_up(scene: &Scene, times: &RunTimes) -> Wait {
    let mut looks = LOOKS;
    assert_eq!(played(scene, times, &mut looks), None);
    assert_eq!(looks, 0, "no look is taken that is not counted");
    wait(scene, times).expect("it is added up")
}

#[test]
fn a_lowered_limit_makes_a_line_that_only_grows_and_is_not_played_to_its_end() {
    // A hundred ran at once; one may now, and for an hour whoever comes goes before.
    let times = ended(1, 100);
    let hour = 3_600_000.0;
    let scene = Scene {
        limit: Some(1),
        groups: 1,
        holders: holders(1),
        line: [Waiter { cost: 1, group: 0 }].into(),
        overtakers: vec![Overtakers {
            rate: times.rate(0, Priority::High, None),
            until: Some(hour),
        }],
        ..Scene::default()
    };
    let wait = is_added_up(&scene, &times);
    assert!(wait.median > hour, "all of them go before: {wait:?}");
}

#[test]
fn groups_that_all_lack_room_are_not_looked_at_again_and_again() {
    // One run for each of 500 hosts, and a hundred come in a second and go before.
    let times = ended(10, 5_000);
    let scene = Scene {
        limit: Some(10_000),
        group_limit: Some(1),
        groups: 500,
        holders: holders(500),
        line: [Waiter {
            cost: 1,
            group: 499,
        }]
        .into(),
        overtakers: vec![Overtakers {
            rate: times.rate(0, Priority::High, None),
            until: None,
        }],
        ..Scene::default()
    };
    let wait = is_added_up(&scene, &times);
    assert!(wait.earliest <= wait.median && wait.median <= wait.latest);
    assert!(wait.median >= 2_500.0, "its group is taken: {wait:?}");
}

#[test]
fn where_only_groups_have_limits_they_use_nothing_up_for_one_another() {
    // Fifty hosts, each of which is used for half of the time by others that go before.
    let times = ended(40, 1_000);
    let scene = Scene {
        limit: None,
        group_limit: Some(1),
        groups: 50,
        holders: holders(50),
        line: [Waiter { cost: 1, group: 7 }].into(),
        overtakers: vec![Overtakers {
            rate: times.rate(0, Priority::High, None),
            until: None,
        }],
        ..Scene::default()
    };
    let wait = wait(&scene, &times).expect("half of what comes free is left");
    assert!((1_000.0..20_000.0).contains(&wait.median), "{wait:?}");
}

/// Runs of half a second, and one that has run for half a minute: nobody knows how long that one takes, and the
/// half second is not it.
#[test]
fn beside_a_run_that_hangs_nothing_near_is_promised() {
    let times = ended(500, 500);
    let scene = |limit: u64, ages: &[Millis]| Scene {
        limit: Some(limit),
        groups: 1,
        holders: ages
            .iter()
            .map(|age| Held {
                age: Some(*age),
                cost: 1,
                group: 0,
            })
            .collect(),
        line: [Waiter { cost: 1, group: 0 }].into(),
        ..Scene::default()
    };
    let alone = wait(&scene(1, &[30_000]), &times).expect("its age is known");
    assert!(alone.earliest < 15_000.0, "{alone:?}");
    assert!((15_000.0..60_000.0).contains(&alone.median), "{alone:?}");
    assert!(alone.latest > 90_000.0, "{alone:?}");
    let usual = wait(&scene(1, &[400]), &times).expect("it is like all others");
    assert!(usual.latest <= 200.0, "{usual:?}");
    let beside = wait(&scene(2, &[30_000, 400]), &times).expect("the other ends");
    assert!(beside.latest <= 200.0, "{beside:?}");
}
