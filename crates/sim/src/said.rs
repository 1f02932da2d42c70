//! What clients have said, to be compared with what owners make of it: their word is not taken
//! from the owners whom it binds.

use std::collections::BTreeMap;

use attune_core::{ActionId, Priority, Promise, RequestId, Status, Submission};
use attune_executor::Fact;

use crate::oracle::Violation;
use crate::plan::Time;

/// The limits that an action may be held to: the one that a client was told holds now, and those
/// that were asked for since.
type Limits = Vec<(i64, Option<u32>)>;

/// What clients have asked for.
#[derive(Debug, Default)]
pub(crate) struct Said {
    submitted: BTreeMap<RequestId, (Option<Priority>, Option<Time>)>,
    actions: BTreeMap<RequestId, String>,
    limits: BTreeMap<ActionId, Limits>,
}

impl Said {
    /// Somebody asks for an execution, which is to have this priority, if that is known.
    pub(crate) fn submitted(
        &mut self,
        request: RequestId,
        submission: &Submission,
        rank: Option<Priority>,
    ) {
        let not_before = submission.not_before.map(|time| time.timestamp_millis());
        let said = (rank, not_before);
        self.submitted.entry(request).or_insert(said);
        let action_ref = submission.action_ref.clone();
        self.actions.entry(request).or_insert(action_ref);
    }

    /// Of which action an execution was asked for under this id.
    pub(crate) fn action_of(&self, request: RequestId) -> Option<&str> {
        self.actions.get(&request).map(String::as_str)
    }

    /// Somebody has stored a limit; nobody is told that it holds yet.
    pub(crate) fn stored(&mut self, action: ActionId, version: i64, limit: Option<u32>) {
        self.limits
            .entry(action)
            .or_default()
            .push((version, limit));
    }

    /// Somebody was told that a limit holds from now on.
    pub(crate) fn told(&mut self, action: ActionId, version: i64) {
        if let Some(limits) = self.limits.get_mut(&action) {
            limits.retain(|(other, _)| *other >= version);
        }
    }

    /// How many slots of an action may be given at most.
    pub(crate) fn most(&self, action: ActionId) -> u32 {
        let limits = self.limits.get(&action).into_iter().flatten();
        let limits = limits.map(|(_, limit)| limit.unwrap_or(u32::MAX));
        limits.max().unwrap_or(u32::MAX)
    }

    /// How many slots of an action there are whichever of its limits holds.
    pub(crate) fn least(&self, action: ActionId) -> u32 {
        let limits = self.limits.get(&action).into_iter().flatten();
        let limits = limits.map(|(_, limit)| limit.unwrap_or(u32::MAX));
        limits.min().unwrap_or(u32::MAX)
    }

    /// Whether an execution was accepted as it was asked for.
    pub(crate) fn judge(&self, fact: &Fact) -> Option<Violation> {
        let Fact::Accepted {
            execution_id,
            priority,
            request_id,
            not_before,
            status,
            ..
        } = fact
        else {
            return None;
        };
        let Some((asked, start)) = self.submitted.get(request_id) else {
            let words = format!("{execution_id} was accepted and nobody asked for it");
            return Some(Violation::of(Promise::I5, words));
        };
        // What is refused does not wait.
        if let Some(asked) = asked.filter(|asked| asked != priority)
            && *status != Status::Rejected
        {
            let words = format!("{execution_id} is to wait as {asked}, and waits as {priority}");
            return Some(Violation::of(Promise::I3, words));
        }
        if not_before.is_some() && not_before != start {
            let words =
                format!("{execution_id} may start at {start:?}, and waits for {not_before:?}");
            return Some(Violation::of(Promise::I6, words));
        }
        None
    }
}
