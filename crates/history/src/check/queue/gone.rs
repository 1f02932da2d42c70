//! Who ends so that another one can wait: for somebody who is accepted next, and the right one.
//!
//! *I1.* An execution that ends as dropped or replaced waited, and the one that it is said to have made
//! room for is accepted next by the same owner. Who is replaced is of its group, and afterwards nobody
//! else of the group surely waits, unless as many ended as are replaced in one round.
//!
//! *I3.* Nobody of a higher priority than the newcomer is dropped, nobody who was moved before all others,
//! and nobody while somebody waits who goes first: one of a lower priority, or an older one of the same. With `fifo` priorities count for
//! nothing. Who has held a slot and waits again, or came with a delay, is nobody who goes first; ages
//! are compared among those whom this owner has accepted.

use super::*;
use attune_record::{Gone, GoneBy};

/// How many are replaced in one round before newcomers leave some waiting.
const MOST_REPLACED: u64 = 1_000;
/// How many each newcomer replaces all the same.
const EACH_REPLACES: u32 = 8;

/// Somebody for whom others have ended, and who must be accepted next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    newcomer: ExecutionId,
    record: u32,
    by: GoneBy,
    /// How many have ended for it.
    ended: u32,
}

impl Replay<'_> {
    /// Judges an end in the place of somebody.
    pub(super) fn judge_gone(&mut self, record: u32, (id, attempt): Key, gone: Gone) {
        let newcomer = gone.newcomer;
        let earlier = self.expected.take();
        let (same, other) = match earlier {
            Some(earlier) if earlier.newcomer == newcomer => (earlier.ended, None),
            other => (0, other),
        };
        if let Some(other) = other {
            self.blame_absent(other);
        }
        self.expected = Some(Expected {
            newcomer,
            record,
            by: gone.by,
            ended: same + 1,
        });
        let accepted = self.facts.execution(newcomer);
        let is_late = accepted.is_some_and(|known| known.delayed);
        let groups = (self.group(id), self.group(newcomer));
        let is_other = matches!(groups, (Some(one), Some(other)) if one.0 != other.0);
        let problem = if self.holders.contains_key(&id) {
            Some("which held a slot")
        } else if gone.by == GoneBy::Replaced && is_other {
            Some("which is of another group")
        } else if gone.by == GoneBy::Replaced && is_late {
            Some("for one whose time has not come")
        } else {
            None
        };
        if let Some(problem) = problem {
            let what = format!("execution {id}, {problem}, ended in the place of {newcomer}");
            self.break_promise(Promise::I1, what, [record]);
        }
        if gone.by == GoneBy::Dropped {
            self.judge_dropped(record, (id, attempt), gone);
        }
    }

    fn judge_dropped(&mut self, record: u32, (id, attempt): Key, gone: Gone) {
        let newcomer = gone.newcomer;
        let is_fifo = gone.order == OrderRule::Fifo;
        let lane = self.lane(id);
        let its = self.lane(newcomer).flatten();
        let is_above = |own: Priority| !is_fifo && its.is_some_and(|its| own < its);
        let why = match lane {
            _ if attempt > Attempt(0) => Some("has held a slot"),
            Some(None) => Some("goes before all others"),
            Some(Some(own)) if is_above(own) => Some("is of a higher priority"),
            _ => None,
        };
        if let Some(why) = why {
            let what = format!("execution {id} was dropped for {newcomer}, though it {why}");
            self.break_promise(Promise::I3, what, [record]);
        }
        let Some(own) = lane.flatten() else { return };
        // Who goes before all others is left alone.
        let lanes = self.waiting.values().flatten();
        let lanes = lanes.filter_map(|(lane, waiting)| Some(((*lane)?, waiting)));
        let first =
            lanes
                .filter(|(lane, _)| is_fifo || *lane >= own)
                .find_map(|(lane, waiting)| {
                    let mut first = waiting.iter().filter(|other| {
                        let is_older = **other < id && self.is_own(**other) && self.is_own(id);
                        let by_age = is_older && !self.is_contradictory;
                        let goes = by_age || (!is_fifo && lane > own);
                        **other != id && goes && !self.again.contains(other)
                    });
                    first.next().copied()
                });
        if let Some(first) = first {
            let what = format!("execution {id} was dropped for {newcomer}, and not {first}");
            let accepted = self.facts.execution(first).and_then(|known| known.accepted);
            let records = accepted.into_iter().chain([record]);
            self.break_promise(Promise::I3, what, records);
        }
    }

    fn is_own(&self, id: ExecutionId) -> bool {
        Some(id.seq().epoch()) == self.epoch
    }

    /// Judges that somebody comes for whom others have ended.
    pub(super) fn judge_newcomer(&mut self, id: ExecutionId) {
        let Some(expected) = self.expected.take() else {
            return;
        };
        if expected.newcomer != id {
            return self.blame_absent(expected);
        }
        let group = self.group(id);
        let is_unknown = self.rule.is_some() && group.is_none();
        let in_round = self.added.cancelled;
        let is_cut = expected.ended >= EACH_REPLACES && in_round >= MOST_REPLACED;
        if expected.by != GoneBy::Replaced || is_unknown || is_cut {
            return;
        }
        // All of one group are rivals, whosever turn it is and for whom their starts count.
        let is_rival = |other: &Option<Class>| other.map(|it| it.0) == group.map(|it| it.0);
        let lanes = self.waiting.iter().filter(|(other, _)| is_rival(other));
        let mut left = lanes.flat_map(|(_, lanes)| lanes.values().flatten());
        if let Some(left) = left.find(|other| **other != id).copied() {
            let what = format!("execution {left} waits still, though {id} took its place");
            self.break_promise(Promise::I1, what, [expected.record]);
        }
    }

    /// Nobody has ended for one who does not come.
    pub(super) fn judge_expected(&mut self) {
        if let Some(expected) = self.expected.take() {
            self.blame_absent(expected);
        }
    }

    fn blame_absent(&mut self, expected: Expected) {
        let newcomer = expected.newcomer;
        let what = format!("an execution ended in the place of {newcomer}, which was not accepted");
        self.break_promise(Promise::I1, what, [expected.record]);
    }
}
