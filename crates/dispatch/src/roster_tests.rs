//! Who has room, after whatever lives do and say.

use super::*;
use attune_core::{Attempt, ExecutionId};
use proptest::prelude::*;

fn life(worker: WorkerId, slots: u32) -> Life {
    Life {
        worker,
        pool: "default".to_owned(),
        slots,
        draining: false,
    }
}

fn key(id: i64) -> Key {
    (ExecutionId(id), Attempt(1))
}

#[test]
fn the_least_loaded_is_chosen_and_equals_take_turns() {
    let (one, two) = (WorkerId::fresh(), WorkerId::fresh());
    let mut roster = Roster::default();
    roster.set([life(one, 2), life(two, 4)]);
    let mut chosen = Vec::new();
    for id in 0..6 {
        let worker = roster.choose("default").unwrap();
        roster.hold(worker, key(id), false);
        chosen.push(worker);
    }
    assert_eq!(roster.choose("default"), None);
    assert_eq!(chosen.iter().filter(|worker| **worker == one).count(), 2);
    assert_ne!(chosen[0], chosen[1]);
    roster.free(one, key(77));
    assert_eq!(roster.choose("default"), None, "nothing was freed");
    let held = roster.held_by(one)[0];
    roster.free(one, held);
    assert_eq!(roster.choose("default"), Some(one));
    // Said twice it frees nothing more.
    roster.free(one, held);
    assert_eq!(roster.held(one), 1);
}

#[test]
fn who_drains_is_cut_off_or_full_of_others_gets_nothing() {
    let worker = WorkerId::fresh();
    let mut roster = Roster::default();
    roster.set([life(worker, 2)]);
    roster.note_elsewhere(10, worker, 2);
    assert!(!roster.has_room("default"));
    roster.forget_elsewhere(10);
    assert!(!roster.has_room("default"));
    roster.forget_elsewhere(11);
    assert!(
        roster.has_room("default"),
        "who says nothing more has nothing more"
    );
    roster.note_elsewhere(20, worker, 1);
    assert!(roster.has_room("default"));
    roster.note_reach(worker, false);
    assert!(!roster.has_room("default"));
    roster.note_reach(worker, true);
    assert!(roster.has_room("default"));
    roster.set([Life {
        draining: true,
        ..life(worker, 2)
    }]);
    assert!(!roster.has_room("default"));
    assert_eq!(roster.lives_of("default"), 1);
    roster.set([]);
    assert_eq!(roster.lives_of("default"), 0);
    assert!(!roster.knows(worker));
}

#[test]
fn who_has_given_something_back_rests_for_a_while() {
    let worker = WorkerId::fresh();
    let mut roster = Roster::default();
    roster.set([life(worker, 2)]);
    roster.rest(worker, 50);
    roster.rest(worker, 40);
    roster.wake(49);
    assert!(!roster.has_room("default"));
    assert_eq!(roster.wake_at(), Some(50));
    roster.wake(50);
    assert!(roster.has_room("default"));
    assert_eq!(roster.wake_at(), None);
    roster.rest(worker, 90);
    roster.set([]);
    assert_eq!(roster.wake_at(), None);
}

#[test]
fn who_is_preferred_is_chosen_while_it_has_room() {
    let (one, two) = (WorkerId::fresh(), WorkerId::fresh());
    let mut roster = Roster::default();
    roster.set([life(one, 2), life(two, 9)]);
    roster.hold(one, key(1), false);
    assert_eq!(roster.choose("default"), Some(two));
    assert_eq!(roster.choose_rather("default", one, 2), Some(one));
    assert_eq!(roster.choose_rather("default", one, 3), Some(two));
    assert_eq!(roster.choose_rather("other", one, 2), None);
    roster.hold(one, key(2), false);
    assert_eq!(roster.choose_rather("default", one, 2), Some(two));
}

#[test]
fn who_stands_ahead_takes_no_room() {
    let worker = WorkerId::fresh();
    let mut roster = Roster::default();
    roster.set([life(worker, 2)]);
    roster.hold(worker, key(1), false);
    roster.hold(worker, key(2), true);
    roster.hold(worker, key(3), true);
    assert!(roster.has_room("default"));
    assert_eq!(roster.held_by(worker), [key(1), key(2), key(3)]);
    roster.free(worker, key(3));
    roster.hold(worker, key(2), false);
    roster.hold(worker, key(2), false);
    assert_eq!(roster.held(worker), 2);
    assert!(!roster.has_room("default"));
    assert!(roster.may_lead(worker, "default", 2));
    assert!(!roster.may_lead(worker, "default", 3));
    assert!(!roster.may_lead(worker, "other", 2));
    roster.rest(worker, 50);
    assert!(!roster.may_lead(worker, "default", 2));
    roster.free(worker, key(1));
    roster.free(worker, key(2));
    assert_eq!(roster.held(worker), 0);
    assert_eq!(roster.held_by(worker), []);
}

#[test]
fn what_is_held_counts_before_its_life_is_known() {
    let worker = WorkerId::fresh();
    let mut roster = Roster::default();
    roster.hold(worker, key(1), false);
    roster.hold(worker, key(1), false);
    roster.set([life(worker, 1)]);
    assert!(!roster.has_room("default"));
    roster.forget_partition(ExecutionId(1).partition());
    assert!(roster.has_room("default"));
}

/// A life may come to serve another pool: whoever is chosen for a pool serves it, and who is over leaves nothing.
#[test]
fn who_changes_its_pool_is_chosen_for_that_one_alone() {
    let (one, two) = (WorkerId::fresh(), WorkerId::fresh());
    let other = || Life {
        pool: "other".to_owned(),
        ..life(one, 2)
    };
    let mut roster = Roster::default();
    roster.set([life(one, 2)]);
    roster.hold(one, key(1), false);
    roster.set([other()]);
    assert_eq!(roster.choose("default"), None);
    assert_eq!(roster.choose("other"), Some(one));
    let honest = Life {
        pool: "other".to_owned(),
        ..life(two, 1)
    };
    roster.set([other(), honest.clone()]);
    roster.set([honest]);
    assert_eq!(
        (roster.lives_of("default"), roster.lives_of("other")),
        (0, 1)
    );
    assert_eq!(roster.choose("other"), Some(two));
}

const POOLS: [&str; 2] = ["default", "other"];

#[derive(Debug, Clone)]
enum Op {
    /// For each worker: its pool, its slots and whether it drains; none where it is over.
    Set(Vec<Option<(usize, u32, bool)>>),
    Elsewhere(usize, u32),
    Rest(usize, Millis),
    Wake(Millis),
    Reach(usize, bool),
    Hold(usize, i64, bool),
    Free(usize, i64),
    Forget(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let who = 0..3_usize;
    let life = prop::option::of((0..POOLS.len(), 1..4_u32, any::<bool>()));
    prop_oneof![
        prop::collection::vec(life, 3).prop_map(Op::Set),
        (who.clone(), 0..4_u32).prop_map(|(who, count)| Op::Elsewhere(who, count)),
        (who.clone(), 1..50_i64).prop_map(|(who, until)| Op::Rest(who, until)),
        (1..50_i64).prop_map(Op::Wake),
        (who.clone(), any::<bool>()).prop_map(|(who, reaches)| Op::Reach(who, reaches)),
        (who.clone(), 0..4_i64, any::<bool>())
            .prop_map(|(who, id, ahead)| Op::Hold(who, id, ahead)),
        (who.clone(), 0..4_i64).prop_map(|(who, id)| Op::Free(who, id)),
        who.prop_map(Op::Forget),
    ]
}

proptest! {
    /// After every step: who is chosen is known, serves the pool and has room; somebody is chosen where anybody has
    /// room; a pool counts those who serve it.
    #[test]
    fn who_is_chosen_is_there(ops in prop::collection::vec(op(), 1..60)) {
        let workers: Vec<WorkerId> = (0..3).map(|_| WorkerId::fresh()).collect();
        let mut roster = Roster::default();
        for op in ops {
            match op {
                Op::Set(lives) => {
                    let lives = workers.iter().zip(lives).filter_map(|(worker, life)| {
                        let (pool, slots, draining) = life?;
                        let pool = POOLS[pool].to_owned();
                        Some(Life { worker: *worker, pool, slots, draining })
                    });
                    roster.set(lives);
                }
                Op::Elsewhere(who, count) => roster.note_elsewhere(1, workers[who], count),
                Op::Rest(who, until) => roster.rest(workers[who], until),
                Op::Wake(now) => roster.wake(now),
                Op::Reach(who, reaches) => roster.note_reach(workers[who], reaches),
                Op::Hold(who, id, ahead) => roster.hold(workers[who], key(id), ahead),
                Op::Free(who, id) => roster.free(workers[who], key(id)),
                Op::Forget(who) => roster.forget(workers[who]),
            }
            for pool in POOLS {
                let serves = |known: &Known| known.life.pool == pool;
                let has_room = |worker: WorkerId, known: &Known| {
                    let load = roster.held(worker) as u64 + u64::from(known.elsewhere);
                    serves(known) && known.is_open() && load < u64::from(known.life.slots)
                };
                let free = roster.lives.iter().filter(|(worker, known)| has_room(**worker, known));
                let free: Vec<WorkerId> = free.map(|(worker, _)| *worker).collect();
                match roster.choose(pool) {
                    Some(chosen) => prop_assert!(free.contains(&chosen), "{chosen} for {pool}"),
                    None => prop_assert!(free.is_empty(), "{free:?} for {pool}"),
                }
                let serving = roster.lives.values().filter(|known| serves(known)).count();
                prop_assert_eq!(roster.lives_of(pool), serving);
            }
        }
    }
}
