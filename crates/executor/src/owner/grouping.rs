//! Reads what executions say whose action groups them otherwise than when they were accepted, some at a
//! time. Their queues stand still until it is known of all.

use std::collections::BTreeMap;

use attune_core::{ExecutionId, PartitionId};

use super::{Call, Owner, Purpose, Reply};
use crate::partition::Event;
use crate::queue::Millis;

/// How many executions are read at once.
const AT_ONCE: usize = 1_000;
/// When it is tried again, in milliseconds, after it could not be read, or nothing was there.
const AGAIN: Millis = 1_000;

/// How far it is.
#[derive(Debug, Default)]
pub(super) struct Grouping {
    /// Some are being read, or were and are not decided on.
    is_asking: bool,
    /// The partition that was read last: others have their turn.
    last: Option<PartitionId>,
    /// How many were asked for last.
    asked: usize,
    /// What is to be minded of single partitions: what cannot be read of one holds up no other.
    slow: BTreeMap<PartitionId, Slow>,
}

/// What cannot be read at once, or not now.
#[derive(Debug, Clone, Copy, Default)]
struct Slow {
    /// Not before this time.
    at: Millis,
    /// How many are asked for, where the answer has no room for as many, or they could not be read together.
    at_once: Option<usize>,
}

impl Grouping {
    fn at_once(&self, id: PartitionId) -> usize {
        let slow = self.slow.get(&id);
        slow.and_then(|slow| slow.at_once).unwrap_or(AT_ONCE)
    }

    fn waits(&self, id: PartitionId, now: Millis) -> bool {
        self.slow.get(&id).is_some_and(|slow| now < slow.at)
    }
}

#[cfg(test)]
impl Grouping {
    pub(super) fn is_asking(&self) -> bool {
        self.is_asking
    }

    /// How many of a partition are read at once, where that is fewer than otherwise.
    pub(super) fn fewer_at_once(&self, id: PartitionId) -> Option<usize> {
        self.slow.get(&id)?.at_once
    }
}

impl Owner {
    /// Asks for the next ones.
    pub(super) fn go_on_grouping(&mut self, now: Millis) {
        if self.has_ended() || self.grouping.is_asking {
            return;
        }
        // What was read is decided on first, or it would be read again.
        let is_read = |id: PartitionId| {
            let mut pending = self.pending.iter();
            pending.any(|(of, event)| *of == id && matches!(event, Event::Words(_)))
        };
        let open = self.places.keys();
        let open = open.filter(|id| !self.grouping.waits(**id, now));
        let open = open.filter(|id| self.is_open(**id) && !is_read(**id));
        let unknown = open.filter_map(|id| {
            let at_once = self.grouping.at_once(*id);
            let unknown: Vec<ExecutionId> = self.partition(*id)?.unknown(at_once);
            (!unknown.is_empty()).then_some((*id, unknown))
        });
        let last = self.grouping.last;
        let next = unknown.min_by_key(|(id, _)| (Some(*id) <= last, *id));
        let Some((id, unknown)) = next else {
            if self.grouping.slow.values().all(|slow| slow.at <= now) {
                self.grouping.slow.clear();
                self.failing.over(Call::LoadWords(Vec::new()).name());
            }
            return;
        };
        self.grouping.asked = unknown.len();
        self.grouping.is_asking = true;
        self.grouping.last = Some(id);
        self.call(Purpose::Words(id), Call::LoadWords(unknown));
    }

    /// The store has answered. Who is not there any more is not in the answer: the comparison of what
    /// waits finds that out.
    pub(super) fn words_loaded(&mut self, now: Millis, id: PartitionId, reply: Reply) {
        self.grouping.is_asking = false;
        let asked = self.grouping.asked;
        let at_once = self.grouping.at_once(id);
        let slow = match reply {
            Reply::Words(words) if !words.is_empty() => {
                // The store looks through all that are asked for, and answers what there is room for.
                let more = match words.len() {
                    few if 2 * few < asked => 2 * few,
                    _ => 2 * at_once,
                };
                if self.partition(id).is_some() {
                    self.pending.push_back((id, Event::Words(words)));
                }
                let at_once = Some(more).filter(|more| *more < AT_ONCE);
                Slow { at: now, at_once }
            }
            Reply::Words(_) => Slow {
                at: now + AGAIN,
                at_once: Some(at_once),
            },
            // Those that cannot be read together in time are read by halves.
            _ => Slow {
                at: now + AGAIN,
                at_once: Some((asked / 2).max(1)),
            },
        };
        self.grouping.slow.insert(id, slow);
    }
}
