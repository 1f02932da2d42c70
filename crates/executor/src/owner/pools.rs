//! The dispatches that wait for one pool.

use std::collections::{BTreeMap, VecDeque};

use attune_core::{ExecutionId, PartitionId};

use super::Dispatch;
use super::backoff::Backoff;
use super::workers::PoolWorkers;
use crate::partition::Grantee;
use crate::queue::Millis;

/// How long a pool that takes no dispatches is left alone at most, in milliseconds. Trying costs one
/// message; that a pool takes dispatches again is noticed this much later, and by as much once more when
/// the answer to a try is lost.
const LONGEST_RETRY: Millis = 2_000;
/// How many dispatches to one pool may be unconfirmed at once.
const MAX_UNCONFIRMED: usize = 32;
/// How many bytes of dispatches wait for a pool that takes none.
const MAX_WAITING_BYTES: usize = 4 * 1024 * 1024;
/// How many dispatches are published together.
const MAX_TOGETHER: usize = 1_000;
/// How many bytes of them, but always one; likewise about how many are read together.
pub(super) const MAX_BYTES_TOGETHER: usize = 8 * 1024 * 1024;
/// The slots that a worker has by default: so many are reckoned with while none is known.
const SLOTS: usize = 64;

/// Whom a dispatch is for.
pub(super) type Whom = (PartitionId, Grantee);

/// The line of one pool.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) waiting: VecDeque<(PartitionId, Dispatch)>,
    pub(super) waiting_bytes: usize,
    /// What found no room in line: read again once the pool has taken all that did.
    pub(super) dropped: BTreeMap<ExecutionId, Whom>,
    pub(super) unconfirmed: usize,
    /// It takes no dispatches; nothing is granted to it.
    pub(super) closed: bool,
    pub(super) retry_at: Millis,
    pub(super) backoff: Backoff,
}

impl Pool {
    pub(super) fn new() -> Self {
        Self {
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            dropped: BTreeMap::new(),
            unconfirmed: 0,
            closed: false,
            retry_at: Millis::MIN,
            backoff: Backoff::new(100, LONGEST_RETRY),
        }
    }

    pub(super) fn push_back(&mut self, partition: PartitionId, dispatch: Dispatch) {
        self.waiting_bytes += size(&dispatch);
        self.waiting.push_back((partition, dispatch));
    }

    pub(super) fn push_front(&mut self, partition: PartitionId, dispatch: Dispatch) {
        self.waiting_bytes += size(&dispatch);
        self.waiting.push_front((partition, dispatch));
    }

    /// Of what finds no room in line, only keeps whom it was for; answers of which partitions they are.
    pub(super) fn drop_what_has_no_room(&mut self, most: usize) -> Vec<PartitionId> {
        let mut of = Vec::new();
        while (self.waiting.len() > most || self.waiting_bytes > MAX_WAITING_BYTES)
            && let Some((partition, dispatch)) = self.waiting.pop_back()
        {
            self.waiting_bytes -= size(&dispatch);
            let grantee = dispatch.grantee;
            self.dropped
                .insert(grantee.execution_id, (partition, grantee));
            of.push(partition);
        }
        of
    }

    /// A partition is served no more.
    pub(super) fn forget(&mut self, partition: PartitionId) {
        self.waiting.retain(|(of, dispatch)| {
            if *of == partition {
                self.waiting_bytes -= size(dispatch);
            }
            *of != partition
        });
        self.dropped.retain(|_, (of, _)| *of != partition);
    }

    /// It takes dispatches; whether it took none before.
    pub(super) fn open(&mut self) -> bool {
        self.backoff = Backoff::new(100, LONGEST_RETRY);
        self.retry_at = Millis::MIN;
        std::mem::take(&mut self.closed)
    }

    pub(super) fn is_due(&self, now: Millis) -> bool {
        let most = if self.closed { 1 } else { MAX_UNCONFIRMED };
        !self.waiting.is_empty() && self.unconfirmed < most && self.retry_at <= now
    }

    /// All that had room in line was taken.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.unconfirmed == 0
    }

    /// Whether what found no room may be dispatched now.
    pub(super) fn has_room_again(&self) -> bool {
        !self.closed && self.is_idle() && !self.dropped.is_empty()
    }

    /// The first in line that are published together.
    pub(super) fn next(&mut self) -> (Vec<(PartitionId, Dispatch)>, usize) {
        // One is enough to see whether a pool takes dispatches again.
        let most = if self.closed { 1 } else { MAX_TOGETHER };
        let mut items = Vec::with_capacity(most.min(self.waiting.len()));
        let mut bytes = 0;
        while items.len() < most
            && let Some(first) = self.waiting.front()
            && (items.is_empty() || bytes + size(&first.1) <= MAX_BYTES_TOGETHER)
            && let Some(item) = self.waiting.pop_front()
        {
            bytes += size(&item.1);
            items.push(item);
        }
        self.waiting_bytes -= bytes;
        (items, bytes)
    }
}

/// How many of so many dispatches one message holds. It is cheaper the more it holds, but one worker
/// gets all of it, and what it cannot run at once waits there: no more than its slots. More than half of
/// them only while as many come to every worker, in as many messages; otherwise two share what one of
/// them could run alone.
pub(super) fn pack_of(dispatches: usize, workers: Option<PoolWorkers>, most: usize) -> usize {
    let slots = workers.map_or(SLOTS, |of| of.least_slots);
    let most = slots.clamp(1, most);
    let share = workers.map_or(0, |of| dispatches / of.count.max(1));
    let even = share.div_ceil(share.div_ceil(most).max(1));
    even.max(slots.div_ceil(2)).min(most)
}

fn size(dispatch: &Dispatch) -> usize {
    dispatch.body.parameters.get().len() + 512
}
