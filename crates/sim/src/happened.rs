//! What owners tell whoever listens, against what is stored: nothing of it may be ahead of the store.

use attune_core::Status;
use attune_executor::{ActionEvent, Happened};

use crate::oracle::{Rule, Violation};
use crate::store::Store;

/// An owner says that this has happened.
pub(crate) fn judge(store: &Store, event: &ActionEvent) -> Option<Violation> {
    let (id, attempt) = event.what.execution()?;
    let active = store.active.get(&id);
    let ended = store.history.get(&id);
    let ended_as = |status: Status| ended.is_some_and(|ended| ended.status == status);
    let is_there = active.is_some_and(|row| row.attempt >= attempt);
    let was_there = ended.is_some_and(|ended| ended.attempt >= attempt);
    let is_so = match event.what {
        Happened::Finished { status, .. } => ended_as(status),
        Happened::Dropped { newcomer, .. } | Happened::Replaced { newcomer, .. } => {
            let has_come = |id| store.active.contains_key(&id) || store.history.contains_key(&id);
            ended_as(Status::Cancelled) && has_come(newcomer)
        }
        _ => is_there || was_there,
    };
    let words = format!("{event:?} is told, and {active:?} or {ended:?} is stored");
    (!is_so).then(|| Violation::of(Rule::ToldEarly, words))
}
