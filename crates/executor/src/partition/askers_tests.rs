//! How many wait of those who may have so many waiting only, whatever becomes of them.

use std::collections::BTreeMap;

use attune_core::{Asker, RejectCode, Submission, WaitBound};
use proptest::prelude::*;

use super::test_world::*;
use super::*;

const BOUND: u32 = 3;

fn asked(asker: i64) -> Event {
    let submission = Submission::new("core.noop");
    let mut submit = Submit::new(RequestId::fresh(), submission, OnReject::Answer);
    submit.wait_bound = (asker > 0).then_some(WaitBound {
        asker: Asker(asker),
        max_waiting: BOUND,
    });
    Event::Submit {
        submit,
        known: None,
        reply_to: Some("me".into()),
    }
}

/// By what is stored, which is what an API adds up.
fn stored(world: &World) -> BTreeMap<Asker, u32> {
    let mut waiting = BTreeMap::new();
    for row in world.rows() {
        if let Some(asker) = row.asker.filter(|_| row.status == Status::Queued) {
            *waiting.entry(asker).or_default() += 1;
        }
    }
    waiting
}

#[test]
fn the_next_is_refused_until_one_has_started() {
    let mut world = World::new(Some(1), 100);
    let granted = 1;
    for number in 0..granted + BOUND {
        world.step(asked(1));
        assert!(world.refused().is_none(), "{number}");
    }
    world.step(asked(1));
    let refused = world.refused().unwrap().clone();
    assert_eq!(refused.code, RejectCode::UserLimitReached);
    assert!(refused.message.contains("`max_waiting`"), "{refused}");
    // Others are not concerned, and neither is whoever is not bounded.
    for other in [2, 0] {
        world.step(asked(other));
        assert!(world.refused().is_none());
    }
    let mut world = world.take_over(Some(1));
    world.step(asked(1));
    assert!(world.refused().is_some(), "the next owner knows");
    let first = world.holders()[0];
    world.complete(first, world.attempt(first));
    world.step(asked(1));
    assert!(world.refused().is_none(), "one has started");
}

proptest! {
    #![proptest_config(crate::thorough())]

    /// Who waits by memory waits by the store, and nobody is accepted beyond the bound.
    #[test]
    fn memory_counts_what_is_stored(steps in prop::collection::vec((0..9_u8, 0..8_usize), 1..60)) {
        let mut world = World::new(Some(2), 100);
        for (kind, pick) in steps {
            let before = stored(&world);
            let rows = world.rows();
            match kind {
                0..=3 => {
                    let asker = i64::try_from(pick % 3).unwrap();
                    world.step(asked(asker));
                    let was = before.get(&Asker(asker)).copied().unwrap_or_default();
                    prop_assert_eq!(world.refused().is_some(), asker > 0 && was >= BOUND);
                }
                4 | 5 => {
                    let holders = world.holders();
                    if let Some(id) = holders.get(pick % holders.len().max(1)) {
                        world.complete(*id, world.attempt(*id));
                    }
                }
                6 => {
                    if let Some(row) = rows.get(pick % rows.len().max(1)) {
                        world.round(vec![cancel(row.id)]);
                    }
                }
                7 => {
                    // The lives of whoever holds a slot are over: all of it waits again, or is given up.
                    let holders = world.holders();
                    let slots = holders.iter().map(|id| world.slot(*id, true)).collect();
                    world.reconcile(slots);
                }
                _ => world = world.take_over(Some(2)),
            }
            for asker in [1, 2].map(Asker) {
                let waiting = stored(&world).get(&asker).copied().unwrap_or_default();
                prop_assert_eq!(world.partition.askers.waiting(asker), waiting);
            }
        }
    }
}
