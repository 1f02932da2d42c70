//! Whether more wait than may: whoever comes to a full queue and cannot start is refused, or another one goes
//! for it. A bound that was lowered takes nobody out, and who is put back waits whatever the bound, so that
//! only rounds are judged in which somebody came who waits at their end.

use std::collections::BTreeSet;

use attune_core::ExecutionId;

use super::super::decision::Counts;
use super::{Promise, Replay};

/// How many may wait, and what a round has done so far.
#[derive(Debug, Default)]
pub(super) struct Length {
    /// The bound in force, where it is recorded.
    now: Option<u32>,
    /// The highest that was in force in this round; `None` when one was not recorded.
    most: Option<u32>,
    /// Who has come in this round and waits.
    came: BTreeSet<ExecutionId>,
    /// How many were put back in this round.
    put_back: u64,
}

impl Length {
    /// So many may wait from now on.
    pub(super) fn set(&mut self, max_length: Option<u32>) {
        self.most = match self.came.is_empty() {
            true => max_length,
            false => max_length.and_then(|it| Some(it.max(self.most?))),
        };
        self.now = max_length;
    }

    pub(super) fn comes(&mut self, id: ExecutionId) {
        self.came.insert(id);
    }

    pub(super) fn leaves(&mut self, id: ExecutionId) {
        self.came.remove(&id);
    }

    pub(super) fn is_put_back(&mut self) {
        self.put_back += 1;
    }
}

impl Replay<'_> {
    /// A round ends. Who came when it could start at once and starts in the next round is not told from
    /// others: a round that goes on is not judged.
    pub(super) fn judge_length(&mut self, record: u32, counts: &Counts, goes_on: bool) {
        let now = self.length.now;
        let ended = std::mem::replace(
            &mut self.length,
            Length {
                now,
                most: now,
                ..Length::default()
            },
        );
        let (Some(most), Some(last)) = (ended.most, ended.came.last()) else {
            return;
        };
        if goes_on || counts.waiting <= u64::from(most) + ended.put_back {
            return;
        }
        // Where they demand different things somebody starts beside others who wait: whoever has room when it
        // comes is taken into a queue that is too long, and a later one may have its slot in the end.
        let mut came = ended.came.iter();
        if came.any(|id| {
            self.facts
                .execution(*id)
                .is_some_and(|it| it.demand.is_some())
        }) {
            return;
        }
        let what = format!(
            "execution {last} of action {} was taken in although {most} may wait; {} do",
            self.action_id, counts.waiting
        );
        let accepted = self.facts.execution(*last).and_then(|known| known.accepted);
        self.break_promise(Promise::I2, what, accepted.into_iter().chain([record]));
    }
}
