//! The dispatch protocol: a grant names the worker life that may start it. No claim follows.
//!
//! What is in it: one action with limit L and executions that all wait; two worker lives; the
//! current owner and, after a takeover, stale ones whose messages may come at any time. With a lane
//! up to L + `ahead` executions are granted, those beyond L only to the worker that holds all L
//! slots, which hands the slots on itself. What an owner sends to a worker is numbered for each
//! partition, epoch and worker; such *sections* may be lost, doubled and returned by the broker (up
//! to bounds), late and in any order (without bounds). Reports of workers are a set from which
//! owners hear as often as they like. The lease of a worker may end at any moment, before anybody
//! else may know it. Nothing recalls what waits at a worker: it may give it back at any moment.
//!
//! What is not in it: time (whatever may end, may end at any moment); commits whose outcome is
//! unknown ([`ownership`](crate::ownership) has them: they find another epoch); several actions and
//! partitions, whose sections are independent; cancels, which end as the recall of one does; changes
//! of the limit.
//!
//! *Safety* is in [`Breach`]: none may be reached. *Progress*: from every state, without a further
//! fault, all executions end and every worker that lives forgets them all, so its memory is bounded.
//! Rules are named as in decision 49 (`docs/adr`): what a worker must do is W1 to W7, an owner O1 to
//! O6; each [`Variant`] leaves one of them out.

mod check;
mod fingerprint;
mod message;
mod offered;
mod owner;
mod perform;
mod reduce;
mod state;
mod step;
mod variant;
mod worker;

pub use check::{Verdict, check};
pub use message::{Content, Report, Section, Seen};
pub use state::{Breach, Key, Life};
pub use step::{Fault, Faults, Step};
pub use variant::Variant;

/// How far the check goes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Executions of one action, which all wait in the beginning: at most five.
    pub executions: usize,
    /// How many programs may run.
    pub limit: usize,
    /// How many more may be granted to the worker that has all that are granted.
    pub ahead: usize,
    /// How an owner learns that a worker has seen what it was sent.
    pub knowledge: Knowledge,
    /// What may go wrong.
    pub faults: Faults,
}

/// How an owner learns that a worker has seen what it was sent (O3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// It looks into the table of the worker: fewer states, so more of everything else.
    Asked,
    /// By reports, which are late, lost and heard again like all others.
    Reported,
}

/// The model: a variant within bounds.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// What is done differently.
    pub variant: Variant,
    /// How far the check goes.
    pub bounds: Bounds,
}

impl Protocol {
    fn is(&self, variant: Variant) -> bool {
        self.variant == variant
    }
}
