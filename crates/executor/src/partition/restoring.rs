//! Takes what is stored into memory.

use attune_core::{Attempt, Bug, Status};

use crate::policy::Share;
use crate::queue::{ActionQueue, Holder, Millis, Waiting};
use crate::stored::StoredExecution;

/// An owner may be behind a time that was written down by as much: it saw the time in an answer that came late, or
/// whoever wrote it down was ahead. What lies further ahead was written down by a clock that was wrong.
const BEHIND: Millis = 60_000;

/// A time that was written down, as it counts for an owner: also where the owner has not come to it yet, because it
/// steps onwards when it sees how late it is, and a wait that counted from its own time would be over too early
/// then by all of the step. One that counts from what was written down is at most late.
pub(super) fn unless_wrong(now: Millis, written: Millis) -> Millis {
    if written > now.saturating_add(BEHIND) {
        return now;
    }
    written
}

/// Takes a stored execution into a queue, as it is stored: as a holder, whatever the limit is
/// now, or at its place in the order. Totals know it already.
pub(super) fn restore(queue: &mut ActionQueue, now: Millis, row: &StoredExecution) {
    // Its place is among those of now at the latest, whoever wrote it down as of the future.
    let (seq, enqueued_at) = (row.id.seq(), row.created.min(now));
    // It waits from the time of whoever accepted it, or it would wait less than it was promised; the time it was
    // not eligible does not count as waiting for a slot.
    let since = match Bug::WaitsAnew.is_planted() {
        true => enqueued_at,
        false => unless_wrong(now, row.created),
    };
    let eligible_at = row
        .not_before
        .map_or(since, |time| time.min(now).max(since));
    if row.is_granted() {
        let holder = Holder {
            attempt: row.attempt,
            unbegun: row.unbegun,
            priority: row.priority,
            seq,
            enqueued_at,
            eligible_at,
            held_since: None,
            cancel_requested: row.cancel_requested,
            front: row.front,
            share: Share::default(),
            worker: row.worker.filter(|_| row.kept_until.is_none()),
            started: row.status == Status::Running,
            ahead: row.ahead(),
        };
        queue.restore_holder(row.id, holder, row.demand.as_ref());
        if let Some(until) = row.kept_until {
            queue.keep(row.id, row.attempt, true, until);
        }
        return;
    }
    // Who had a slot before has the delay behind it that it came with: its place is before all who came
    // later, also by a clock that shows an earlier time now. Whoever puts it back for another try writes
    // until when it waits for that.
    let is_first = row.attempt == Attempt(0);
    let not_before = row.not_before.filter(|_| is_first || row.retried);
    let waiting = Waiting {
        execution_id: row.id,
        seq,
        enqueued_at,
        eligible_at,
        attempt: row.attempt,
        unbegun: row.unbegun,
        delayed: not_before.is_some() || row.front,
        front: row.front,
        share: Share::default(),
    };
    let not_before = not_before.filter(|time| *time > now);
    queue.restore_waiting(row.priority, waiting, row.demand.as_ref(), not_before);
}
