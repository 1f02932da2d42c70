//! What operators do to who waits, in any number.
//!
//! Each costs a search, and what that leaves behind in a lane is tidied up once for many: so a page of
//! `k` executions out of `n` costs `k · log n`, however they lie, and never `k` times a lane.

use attune_core::{Priority, Seq};

use super::ActionQueue;

impl ActionQueue {
    /// With which priority somebody waits, and whether it goes before all others; `None` when it does not
    /// wait.
    pub(crate) fn standing(&self, seq: Seq) -> Option<(Priority, bool)> {
        let load = self.load.as_ref()?;
        let in_line = load.order.find(seq);
        in_line
            .map(|(priority, waiting)| (priority, waiting.front))
            .or_else(|| load.delayed.standing(seq))
    }

    /// Lets somebody who waits stand in another lane, at the place that its age gives it there; false when
    /// it does not wait.
    pub(crate) fn move_waiting(&mut self, seq: Seq, priority: Priority, front: bool) -> bool {
        let (limits, Some(load)) = (&self.limits, &mut self.load) else {
            return false;
        };
        let Some((earlier, mut waiting)) = load.order.remove(seq) else {
            return load.delayed.set_standing(seq, priority, front);
        };
        if let Some(groups) = &mut load.groups {
            let standing = (waiting.lane(earlier), seq);
            groups.stop_waiting(limits, waiting.share.group, standing);
        }
        // Those behind it there may have been granted before it, and rightly.
        (waiting.front, waiting.delayed) = (front, true);
        load.wait(limits, priority, waiting);
        true
    }
}
