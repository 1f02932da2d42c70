//! Whether more wait than may: whoever comes to a full queue and cannot start is refused, or another one goes
//! for it. A bound that was lowered takes nobody out, and who is put back waits whatever the bound, so that
//! only rounds are judged in which somebody came, in nobody's place, who waits at their end.

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
    /// Who has come in this round and waits, but not those who took the place of another.
    came: BTreeSet<ExecutionId>,
    /// In whose place another one has ended.
    replacing: Option<ExecutionId>,
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

    /// Another one has ended in the place of this one, which comes next.
    pub(super) fn makes_room_for(&mut self, newcomer: ExecutionId) {
        self.replacing = Some(newcomer);
    }

    pub(super) fn comes(&mut self, id: ExecutionId) {
        if self.replacing.take() != Some(id) {
            self.came.insert(id);
        }
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
        let what = format!(
            "execution {last} of action {} was taken in although {most} may wait; {} do",
            self.action_id, counts.waiting
        );
        let accepted = self.facts.execution(*last).and_then(|known| known.accepted);
        self.break_promise(Promise::I2, what, accepted.into_iter().chain([record]));
    }
}
