//! What must hold in every state, and what must happen at least once so that this says something.

use stateright::Property;

use super::protocol::Protocol;
use super::state::{Lease, State, Status};

/// The names of what must hold in every state.
pub const MUST_HOLD: [&str; 9] = [
    "I1 a request is with the broker until it is stored",
    "I2 slots that are held stay within the limit",
    "I2 programs that run stay within the limit",
    "I3 the sequence follows the order of the broker",
    "I3 nobody is granted a slot before one that waited longer",
    "I4 no completion is acknowledged while its attempt holds a slot",
    "I5 an execution has one outcome",
    "one start per attempt",
    "the owner remembers what is stored",
];

pub(super) fn all() -> Vec<Property<Protocol>> {
    let [
        kept,
        slots,
        programs,
        sequence,
        order,
        released,
        outcome,
        start,
        memory,
    ] = MUST_HOLD;
    vec![
        Property::always(kept, |_, state: &State| {
            (0..).zip(&state.stored).all(|(execution, stored)| {
                stored.seq.is_some() || state.requests.contains(&execution)
            })
        }),
        Property::always(slots, |model: &Protocol, state: &State| {
            state.slots().count() <= usize::from(model.bounds.limit)
        }),
        Property::always(programs, |model: &Protocol, state: &State| {
            state.runs.len() <= usize::from(model.bounds.limit)
        }),
        Property::always(sequence, |_, state: &State| {
            // Requests are numbered in the order of the broker; None is less than any sequence.
            let accepted = state.stored.iter().map_while(|stored| stored.seq).count();
            let sequences = state.stored.iter().take(accepted).map(|stored| stored.seq);
            sequences.is_sorted_by(|one, next| one < next)
                && state
                    .stored
                    .iter()
                    .skip(accepted)
                    .all(|stored| stored.seq.is_none())
        }),
        Property::always(order, |_, state: &State| !state.overtaken),
        Property::always(released, |_, state: &State| {
            let held: Vec<_> = state.slots().collect();
            let done = state
                .completions
                .iter()
                .filter(|(_, acknowledged)| **acknowledged);
            done.map(|(key, _)| key).all(|key| !held.contains(key))
        }),
        Property::always(outcome, |_, state: &State| {
            state.stored.iter().all(|stored| stored.outcomes <= 1)
        }),
        Property::always(start, |_, state: &State| {
            state.starts.values().all(|starts| *starts <= 1)
        }),
        Property::always(memory, |_, state: &State| {
            let owner = state.owners.iter().find(|owner| owner.epoch == state.epoch);
            owner
                .filter(|owner| owner.loaded && owner.draft.is_none())
                .is_none_or(|owner| state.slots().eq(owner.active.iter().copied()))
        }),
        Property::sometimes(
            "a partition is taken while slots are held and somebody waits",
            |_, state: &State| {
                let loading =
                    |owner: &super::state::Owner| owner.epoch == state.epoch && !owner.loaded;
                let queued = |row: super::state::Row| row.status == Status::Queued;
                state.slots().next().is_some()
                    && state
                        .stored
                        .iter()
                        .any(|stored| stored.row.is_some_and(queued))
                    && state.owners.iter().any(loading)
            },
        ),
        Property::sometimes("a stale owner commits", |_, state: &State| {
            let stale = |owner: &super::state::Owner| {
                owner.epoch < state.epoch
                    && owner
                        .draft
                        .as_ref()
                        .is_some_and(|draft| !draft.writes.is_empty())
            };
            state.owners.iter().any(stale)
        }),
        Property::sometimes("a commit is sent again", |_, state: &State| {
            let again = |owner: &super::state::Owner| {
                owner.epoch == state.epoch && owner.draft.as_ref().is_some_and(|draft| draft.again)
            };
            state.owners.iter().any(again)
        }),
        Property::sometimes(
            "a request comes again after it was stored",
            |_, state: &State| {
                let receiving = |index: u8| {
                    let owner = &state.owners[usize::from(index)];
                    owner.loaded && owner.draft.is_none() && owner.epoch == state.epoch
                };
                state.receiver.is_some_and(receiving)
                    && state
                        .requests
                        .iter()
                        .any(|execution| state.of(*execution).seq.is_some())
            },
        ),
        Property::sometimes(
            "a completion comes after its slot was taken back",
            |_, state: &State| {
                state.completions.keys().any(|(execution, attempt)| {
                    state
                        .of(*execution)
                        .row
                        .is_some_and(|row| row.attempt > *attempt)
                })
            },
        ),
        Property::sometimes(
            "a program runs on after its worker's lease has ended",
            |_, state: &State| {
                state
                    .runs
                    .iter()
                    .any(|(worker, ..)| state.leases[usize::from(*worker)] == Lease::Expired)
            },
        ),
        Property::sometimes(
            "everything ends, one in its second attempt",
            |_, state: &State| {
                state
                    .stored
                    .iter()
                    .all(|stored| stored.outcomes == 1 && stored.row.is_none())
                    && state.starts.keys().any(|(_, attempt)| *attempt == 2)
                    && state.requests.is_empty()
            },
        ),
    ]
}
