//! What may happen next, and what it does.

use stateright::{Model, Property};

use super::properties;
use super::state::{Ack, Attempt, Execution, Lease, Owner, Row, State, Status};

/// One thing that is left out or done differently; each breaks a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Nothing: the protocol as it is.
    Full,
    /// Commits do not check the epoch.
    NoFence,
    /// A commit that is sent again does not check the epoch again.
    RetryUnfenced,
    /// After an unknown outcome the owner takes its partition in a new epoch before it writes the
    /// batch again, so that a first try that the store carries out late finds another epoch.
    FreshEpoch,
    /// Workers run what they are sent without claiming it.
    NoClaim,
    /// Slots are counted instead of kept as a set of (execution, attempt).
    Counter,
    /// The grace of a worker's lease may end before the worker has killed what it runs.
    KillLate,
    /// An execution that is taken back keeps the number of its attempt.
    SameAttempt,
    /// An execution that is taken back loses its place.
    RetryAtBack,
    /// Requests are acknowledged before they are committed.
    AckFirst,
    /// A round that only acknowledges does not check the epoch.
    AckUnfenced,
    /// What a receiver has not acknowledged goes behind the others when it is gone.
    RequeueAtBack,
}

/// How far the check goes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Requests of one action.
    pub executions: u8,
    /// How many executions may hold a slot.
    pub limit: u8,
    /// How often a partition is taken, the first time included.
    pub epochs: u8,
    /// Commits whose outcome is unknown.
    pub unknowns: u8,
    /// Whether the store may carry such a commit out later, when its owner has gone on.
    pub late_commits: bool,
    /// Workers whose lease ends.
    pub lost_workers: usize,
    /// After so many attempts a lost execution is not tried again.
    pub max_attempts: u8,
}

/// The model: a variant within bounds.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// What is done differently.
    pub variant: Variant,
    /// How far the check goes.
    pub bounds: Bounds,
}

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The lease of the partition has ended, or was given up: an executor takes it.
    Acquire(u8),
    /// The owner rebuilds its queue and subscribes.
    Load(u8),
    /// The owner decides on the next request that the broker has for it.
    TakeIn(u8),
    /// The owner decides on a completion, whether it comes for the first time or again.
    Complete(u8, Execution, Attempt),
    /// The owner finds that the worker of an execution is lost.
    Revoke(u8, Execution, Attempt),
    /// The store answers a commit.
    Commit(u8),
    /// The store does not answer a commit; it was carried out, or not (yet).
    CommitUnknown(u8, bool),
    /// The store carries out a commit that its owner has given up.
    CommitLate,
    /// The broker finds out that a receiver is gone.
    HandOver,
    /// A worker claims what was granted and starts it.
    Start(u8, Execution),
    /// A program ends; its worker reports it.
    Finish(u8, Execution, Attempt),
    /// The lease of a worker ends, in the eyes of the store.
    LoseWorker(u8),
    /// It has been over for as long as the grace.
    GraceOver(u8),
}

impl Protocol {
    fn is(&self, variant: Variant) -> bool {
        self.variant == variant
    }

    fn owner_actions(&self, state: &State, index: u8, actions: &mut Vec<Action>) {
        let owner = &state.owners[usize::from(index)];
        let owns = owner.epoch == state.epoch && state.epoch > 0;
        if !owns && state.epoch < self.bounds.epochs {
            actions.push(Action::Acquire(index));
        }
        if owner.epoch == 0 {
            return;
        }
        if !owner.loaded {
            // A load that a later owner has overtaken builds a memory that can write nothing.
            if owner.epoch == state.epoch {
                actions.push(Action::Load(index));
            }
            return;
        }
        if owner.draft.is_some() {
            actions.push(Action::Commit(index));
            if state.unknowns < self.bounds.unknowns {
                actions.push(Action::CommitUnknown(index, true));
                actions.push(Action::CommitUnknown(index, false));
            }
            return;
        }
        if state.receiver == Some(index) && !state.requests.is_empty() {
            actions.push(Action::TakeIn(index));
        }
        for ((execution, attempt), acknowledged) in &state.completions {
            // Doubled ones say nothing new to an owner that knows of no such slot, except that
            // one who only counts believes them.
            let known = owner.active.contains(&(*execution, *attempt));
            if !acknowledged || known || self.is(Variant::Counter) {
                actions.push(Action::Complete(index, *execution, *attempt));
            }
        }
        for (execution, stored) in (0..).zip(&state.stored) {
            if let Some(Row {
                status: Status::Running(worker),
                attempt,
            }) = stored.row
                && state.leases[usize::from(worker)] == Lease::GraceOver
                && owner.active.contains(&(execution, attempt))
            {
                actions.push(Action::Revoke(index, execution, attempt));
            }
        }
    }

    fn worker_actions(&self, state: &State, worker: u8, actions: &mut Vec<Action>) {
        match state.leases[usize::from(worker)] {
            Lease::Holds => {
                for (execution, stored) in (0..).zip(&state.stored) {
                    let may = stored.row.is_some_and(|row| match row.status {
                        Status::Queued => false,
                        Status::Requested => true,
                        Status::Running(_) => {
                            self.is(Variant::NoClaim)
                                && !state.runs.contains(&(worker, execution, row.attempt))
                                && state.starts[&(execution, row.attempt)] < 2
                        }
                    });
                    if may {
                        actions.push(Action::Start(worker, execution));
                    }
                }
                let lost = state.leases.iter().filter(|it| **it != Lease::Holds);
                if lost.count() < self.bounds.lost_workers {
                    actions.push(Action::LoseWorker(worker));
                }
            }
            Lease::Expired => actions.push(Action::GraceOver(worker)),
            Lease::GraceOver => {}
        }
    }

    fn commit(&self, state: &mut State, index: u8) {
        let fenced = state.owners[usize::from(index)].epoch != state.epoch;
        let owner = &mut state.owners[usize::from(index)];
        let Some(draft) = owner.draft.take() else {
            return;
        };
        let checks = match self.variant {
            Variant::NoFence => false,
            Variant::RetryUnfenced => !draft.again,
            Variant::AckUnfenced => !draft.writes.is_empty(),
            _ => true,
        };
        if fenced && checks {
            return self.step_down(state, index);
        }
        state.carry_out(&draft.writes);
        match draft.ack {
            Ack::Nothing => {}
            Ack::Request(execution) => {
                // On a channel that is closed it does nothing.
                if state.receiver == Some(index) {
                    state.requests.retain(|other| *other != execution);
                }
            }
            Ack::Completion(execution, attempt) => {
                state.completions.insert((execution, attempt), true);
            }
        }
    }

    /// A lost partition: memory and subscriptions go.
    fn step_down(&self, state: &mut State, index: u8) {
        state.owners[usize::from(index)] = Owner::default();
        if state.receiver == Some(index) {
            self.close_receiver(state);
        }
    }

    /// The broker gives what was not acknowledged to the next receiver.
    fn close_receiver(&self, state: &mut State) {
        if self.is(Variant::RequeueAtBack) && !state.requests.is_empty() {
            state.requests.rotate_left(1);
        }
        let next = state
            .owners
            .iter()
            .position(|owner| owner.loaded && owner.epoch == state.epoch);
        state.receiver = next.and_then(|index| u8::try_from(index).ok());
    }

    fn commit_unknown(&self, state: &mut State, index: u8, carried_out: bool) {
        state.unknowns += 1;
        let epoch = state.owners[usize::from(index)].epoch;
        let owner = &mut state.owners[usize::from(index)];
        let Some(draft) = &mut owner.draft else {
            return;
        };
        draft.again = true;
        let writes = draft.writes.clone();
        if carried_out {
            if epoch == state.epoch || self.is(Variant::NoFence) {
                state.carry_out(&writes);
            }
        } else if self.bounds.late_commits {
            state.late = Some((epoch, writes));
        }
        if self.is(Variant::FreshEpoch) {
            if epoch == state.epoch {
                state.epoch += 1;
                state.owners[usize::from(index)].epoch = state.epoch;
            } else {
                self.step_down(state, index);
            }
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.bounds.executions)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for index in [0, 1] {
            self.owner_actions(state, index, actions);
            self.worker_actions(state, index, actions);
        }
        if state.late.is_some() {
            actions.push(Action::CommitLate);
        }
        if let Some(receiver) = state.receiver {
            let stale = state.owners[usize::from(receiver)].epoch != state.epoch;
            if stale
                && state
                    .owners
                    .iter()
                    .any(|owner| owner.loaded && owner.epoch == state.epoch)
            {
                actions.push(Action::HandOver);
            }
        }
        actions.extend(
            state
                .runs
                .iter()
                .map(|(worker, execution, attempt)| Action::Finish(*worker, *execution, *attempt)),
        );
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        let (limit, variant) = (self.bounds.limit, self.variant);
        match action {
            Action::Acquire(index) => {
                state.epoch += 1;
                // One process has one subscription at a time.
                if state.receiver == Some(index) {
                    state.receiver = None;
                }
                state.owners[usize::from(index)] = Owner {
                    epoch: state.epoch,
                    ..Owner::default()
                };
            }
            Action::Load(index) => {
                state.owners[usize::from(index)].load(last, limit, variant);
                state.receiver = state.receiver.or(Some(index));
            }
            Action::TakeIn(index) => {
                let execution = state.requests[0];
                state.owners[usize::from(index)].take_in(last, execution, limit, variant);
                if variant == Variant::AckFirst {
                    state.requests.remove(0);
                }
            }
            Action::Complete(index, execution, attempt) => {
                state.owners[usize::from(index)].complete(execution, attempt, limit, variant);
            }
            Action::Revoke(index, execution, attempt) => {
                let bounds = (limit, self.bounds.max_attempts);
                state.owners[usize::from(index)].revoke(last, execution, attempt, bounds, variant);
            }
            Action::Commit(index) => self.commit(&mut state, index),
            Action::CommitUnknown(index, carried_out) => {
                self.commit_unknown(&mut state, index, carried_out);
            }
            Action::CommitLate => {
                let (epoch, writes) = state.late.take()?;
                if epoch == state.epoch || variant == Variant::NoFence {
                    state.carry_out(&writes);
                }
            }
            Action::HandOver => self.close_receiver(&mut state),
            Action::Start(worker, execution) => {
                let row = state.of_mut(execution).row.as_mut()?;
                if row.status == Status::Requested {
                    row.status = Status::Running(worker);
                }
                let attempt = row.attempt;
                *state.starts.entry((execution, attempt)).or_default() += 1;
                state.runs.insert((worker, execution, attempt));
            }
            Action::Finish(worker, execution, attempt) => {
                state.runs.remove(&(worker, execution, attempt));
                state.completions.entry((execution, attempt)).or_default();
            }
            Action::LoseWorker(worker) => {
                state.leases[usize::from(worker)] = Lease::Expired;
            }
            Action::GraceOver(worker) => {
                state.leases[usize::from(worker)] = Lease::GraceOver;
                // A worker kills what it runs when its own deadline has passed, which is before.
                if variant != Variant::KillLate {
                    state.runs.retain(|(other, ..)| *other != worker);
                }
            }
        }
        Some(state).filter(|state| state != last)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}
