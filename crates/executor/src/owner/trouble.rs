//! What keeps an owner from doing its work, for those who look at it.

use std::collections::BTreeMap;

use attune_core::{Epoch, PartitionId};

use super::{Notice, Owner, Purpose, Reply, Stage, sweep};
use crate::queue::Millis;

/// What keeps an owner from doing its work, as far as it knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// For how long, in milliseconds.
    pub for_ms: Millis,
    /// What, for people.
    pub words: String,
}

/// The reads beside the rounds that fail, by what they are: since when, and what the store said last.
/// Without them nothing that is decided is wrong; but slots of lost workers stay taken, lost
/// dispatches do not come again, and differences are not mended, in all partitions.
#[derive(Debug, Default)]
pub(super) struct FailingReads(BTreeMap<&'static str, (Millis, String)>);

impl FailingReads {
    /// There is nothing to read, or it was read.
    pub(super) fn over(&mut self, name: &str) {
        self.0.remove(name);
    }
}

impl Owner {
    /// What keeps it from doing its work, if anything has for long enough to be told.
    pub fn trouble(&self, now: Millis) -> Option<Trouble> {
        let refused = self.refusals(now).map(|(partition, _, trouble)| Trouble {
            words: if self.rewrites.contains_key(&partition) {
                format!(
                    "the store refuses what is decided about partition {partition}: {}",
                    trouble.words
                )
            } else {
                format!("partition {partition}: {}", trouble.words)
            },
            ..trouble
        });
        let unread = self.unread(now).map(|(partition, _, trouble)| Trouble {
            words: format!(
                "what comes for partition {partition} cannot be looked up: {}",
                trouble.words
            ),
            ..trouble
        });
        // They have not been renewed for as long as they last by then.
        let ttl = self.options.lease_ttl;
        let untrusted = self.keeper.untrusted_for(now).map(|for_ms| Trouble {
            for_ms: ttl + for_ms,
            words: "the leases cannot be renewed".to_owned(),
        });
        let unrenewable = self.keeper.unrenewable.longest();
        let unrenewable = unrenewable.map(|(partition, since, words)| Trouble {
            for_ms: now - since,
            words: format!("the lease of partition {partition} cannot be renewed: {words}"),
        });
        let cut_off = self.reach.lost_for(now);
        let cut_off = (cut_off > 0).then(|| Trouble {
            for_ms: cut_off,
            words: "the message broker cannot be reached, or has been back for less than a third \
                    of a lease"
                .to_owned(),
        });
        let bodies = self.unread_bodies(now).map(|(.., trouble)| trouble);
        let operations = self
            .refused_operations(now)
            .map(|(partition, _, trouble)| Trouble {
                words: format!("partition {partition}: {}", trouble.words),
                ..trouble
            });
        let aside = self
            .set_aside_since(now)
            .map(|(partition, _, trouble)| Trouble {
                words: format!(
                    "dead letters or entries of the audit log of partition {partition} cannot be \
                 stored: {}",
                    trouble.words
                ),
                ..trouble
            });
        refused
            .chain(unread)
            .chain(untrusted)
            .chain(unrenewable)
            .chain(cut_off)
            .chain(bodies)
            .chain(operations)
            .chain(aside)
            .chain(self.slow(now))
            .chain(self.failing_read(now))
            .max_by_key(|trouble| trouble.for_ms)
    }

    /// The partitions about which nothing is decided because the store refuses what was, or because
    /// they cannot be loaded; in which epochs, and what the store said.
    pub fn refusals(
        &self,
        now: Millis,
    ) -> impl Iterator<Item = (PartitionId, Epoch, Trouble)> + '_ {
        let refused = self.rewrites.values();
        let refused = refused.filter_map(move |rewrite| rewrite.trouble(now));
        let unloaded = self.places.iter().filter_map(move |(id, place)| {
            let Stage::Loading(load) = &place.stage else {
                return None;
            };
            let (since, words) = load.refused()?;
            let trouble = Trouble {
                for_ms: now - since,
                words: format!("its queues cannot be loaded: {words}"),
            };
            Some((*id, place.epoch, trouble))
        });
        refused.chain(unloaded)
    }

    /// What cannot be read beside the rounds, for each partition that it concerns; what is decided about
    /// the partition goes on.
    pub fn partly_unread(
        &self,
        now: Millis,
    ) -> impl Iterator<Item = (PartitionId, Epoch, Trouble)> + '_ {
        let all = self.failing_read(now).into_iter().flat_map(|trouble| {
            let places = self.places.iter();
            places.map(move |(id, place)| (*id, place.epoch, trouble.clone()))
        });
        self.unread_bodies(now).chain(all)
    }

    /// The partitions of which dead letters or entries of the audit log cannot be stored; everything
    /// else is decided.
    pub fn set_aside_since(
        &self,
        now: Millis,
    ) -> impl Iterator<Item = (PartitionId, Epoch, Trouble)> + '_ {
        self.beside.troubles(now)
    }

    /// The read beside the rounds that has failed for longest.
    fn failing_read(&self, now: Millis) -> Option<Trouble> {
        let failing = self.failing.0.iter().min_by_key(|(_, (since, _))| *since);
        failing.map(|(name, (since, words))| Trouble {
            for_ms: now - since,
            words: format!("it cannot {name}: {words}"),
        })
    }

    /// Says that a call came to nothing, and remembers since when reads do.
    pub(super) fn note_answer(
        &mut self,
        now: Millis,
        purpose: &Purpose,
        name: &'static str,
        reply: &Reply,
    ) {
        let is_read = match purpose {
            // Refused and unknown writes are told as such.
            Purpose::Round | Purpose::Rewrite(..) | Purpose::Beside(..) | Purpose::Nothing => {
                return;
            }
            Purpose::Workers
            | Purpose::EndWorkers
            | Purpose::Look
            | Purpose::Pauses
            | Purpose::Policies
            | Purpose::Operations
            | Purpose::OperationWords(..)
            | Purpose::Words(_) => true,
            Purpose::Sweep(asked) => {
                matches!(asked, sweep::Asked::Slots(_) | sweep::Asked::Slice { .. })
            }
            // Leases, loading and bodies have troubles of their own; of definitions that cannot be
            // read each is looked up when somebody asks for its action.
            Purpose::Keep | Purpose::Free(..) | Purpose::Load(..) | Purpose::Bodies => false,
        };
        let Reply::Failed(failure) = reply else {
            if is_read {
                self.failing.over(name);
            }
            return;
        };
        if is_read {
            let failing = self.failing.0.entry(name);
            let (_, words) = failing.or_insert_with(|| (now, String::new()));
            words.clone_from(&failure.words);
        }
        let failure = failure.clone();
        self.say(Notice::StoreFailed {
            call: name,
            failure,
        });
    }
}
