//! Reads what executions say whose action groups them otherwise than when they were accepted, some at a
//! time. Their queues stand still until it is known of all.

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
    /// Not before this time.
    at: Millis,
    /// The partition that was read last: others have their turn.
    last: Option<PartitionId>,
    /// How many are asked for, where the answer has no room for as many, or they could not be read together.
    pub(super) at_once: Option<usize>,
    /// How many were asked for last.
    asked: usize,
}

#[cfg(test)]
impl Grouping {
    pub(super) fn is_asking(&self) -> bool {
        self.is_asking
    }
}

impl Owner {
    /// Asks for the next ones.
    pub(super) fn go_on_grouping(&mut self, now: Millis) {
        if self.has_ended() || self.grouping.is_asking || now < self.grouping.at {
            return;
        }
        let at_once = self.grouping.at_once.unwrap_or(AT_ONCE);
        // What was read is decided on first, or it would be read again.
        let is_read = |id: PartitionId| {
            let mut pending = self.pending.iter();
            pending.any(|(of, event)| *of == id && matches!(event, Event::Words(_)))
        };
        let open = self.places.keys();
        let open = open.filter(|id| self.is_open(**id) && !is_read(**id));
        let unknown = open.filter_map(|id| {
            let unknown: Vec<ExecutionId> = self.partition(*id)?.unknown(at_once);
            (!unknown.is_empty()).then_some((*id, unknown))
        });
        let last = self.grouping.last;
        let next = unknown.min_by_key(|(id, _)| (Some(*id) <= last, *id));
        let (id, call) = match next {
            Some((id, unknown)) => {
                self.grouping.asked = unknown.len();
                (id, Call::LoadWords(unknown))
            }
            None => return self.failing.over(Call::LoadWords(Vec::new()).name()),
        };
        self.grouping.is_asking = true;
        self.grouping.last = Some(id);
        self.call(Purpose::Words(id), call);
    }

    /// The store has answered. Who is not there any more is not in the answer: the comparison of what
    /// waits finds that out.
    pub(super) fn words_loaded(&mut self, now: Millis, id: PartitionId, reply: Reply) {
        self.grouping.is_asking = false;
        let (asked, at_once) = (self.grouping.asked, self.grouping.at_once);
        match reply {
            Reply::Words(words) if !words.is_empty() => {
                // The store looks through all that are asked for, and answers what there is room for.
                let more = match words.len() {
                    few if 2 * few < asked => 2 * few,
                    _ => 2 * at_once.unwrap_or(AT_ONCE),
                };
                self.grouping.at_once = Some(more).filter(|more| *more < AT_ONCE);
                if self.partition(id).is_some() {
                    self.pending.push_back((id, Event::Words(words)));
                }
            }
            Reply::Words(_) => self.grouping.at = now + AGAIN,
            // Those that cannot be read together in time are read by halves.
            _ => {
                self.grouping.at_once = Some((asked / 2).max(1));
                self.grouping.at = now + AGAIN;
            }
        }
    }
}
