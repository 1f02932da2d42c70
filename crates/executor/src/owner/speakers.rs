//! Whose word counts: an end or a report changes something only where it comes from the life that it names.
//!
//! The broker vouches for the user who published a message, and the lease of a life says as whom it speaks.
//! What another user says in its name changes nothing, is counted, and is not answered either: that an
//! attempt is settled ends what runs under it.

use std::collections::BTreeSet;

use attune_core::{PartitionId, WorkerId};
use attune_dispatch::Speaker;

use super::{Delivered, Output, Owner, Work};
use crate::counters::Counter;
use crate::notice::Notice;

impl Owner {
    /// A message without the ends that come from somebody else than they say.
    pub(super) fn without_others(&mut self, mut delivered: Delivered) -> Delivered {
        if let Work::Completions(items) = &mut delivered.work {
            items.retain(|item| {
                let user = item.user.as_deref();
                self.is_heard_from(item.worker, user, Counter::ForbiddenCompletion)
            });
        }
        delivered
    }

    /// Whether to go by what a user of the broker says in the name of a life. Of one whose lease was not read
    /// yet nothing is taken while it holds something: it is asked to say it again.
    pub(super) fn is_heard_from(
        &mut self,
        worker: WorkerId,
        user: Option<&str>,
        counter: Counter,
    ) -> bool {
        let roster = self.roster.lock();
        match roster.speaker(worker, user) {
            Speaker::Itself => true,
            Speaker::Another => {
                drop(roster);
                self.out.push(Output::Count(counter, 1));
                self.out.push(Output::Notice(Notice::Forbidden {
                    worker,
                    user: user.unwrap_or_default().to_owned(),
                }));
                false
            }
            Speaker::NotKnown => {
                let held = roster.held_by(worker).into_iter();
                let held: BTreeSet<PartitionId> = held.map(|(id, _)| id.partition()).collect();
                drop(roster);
                for id in &held {
                    self.links.want_sync(*id, worker);
                }
                held.is_empty()
            }
        }
    }
}
