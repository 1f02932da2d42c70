//! Writes down which partitions wait because the store refuses what is decided about them, or because
//! their owner has no broker, so that whoever looks at their queues sees it: their figures stand still
//! meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use attune_bus::Bus;
use attune_core::{Epoch, OwnerId, PartitionId};
use attune_executor::Owner;
use attune_executor::owner::Trouble;
use attune_executor::queue::Millis;
use attune_runtime::error_chain;
use attune_store::{LeaseTrouble, PartitionStore, TroubleNote};
use tokio::sync::watch;

use crate::convert::duration;
use crate::driver::boot_now;

/// A refusal that is over before is nobody's business, in milliseconds.
const WORTH_TELLING: Millis = 5_000;
/// How long it waits after it has written, or tried to.
const PAUSE: Duration = Duration::from_secs(1);
/// How many bytes of what the store said are written down. The pages of the lease rows have room for
/// so much: a renewal that needed a new page would fail where the disk is full.
const MAX_WORDS: usize = 160;

/// A partition that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    epoch: Epoch,
    /// By the clock of this process.
    since: Millis,
    /// Empty when nobody knows what is written down.
    words: String,
}

/// The partitions that wait, by their numbers.
pub(crate) type Refusals = BTreeMap<PartitionId, Refusal>;

/// How this executor's way to the bus is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BusState {
    /// It leads nowhere; trouble with some topic is another matter.
    pub(crate) is_lost: bool,
    /// Since when there has been trouble of any kind, and what.
    trouble: Option<(Millis, String)>,
}

/// Looks after the bus until nobody wants to know any more.
pub(crate) async fn watch_bus(bus: Arc<dyn Bus>, state: watch::Sender<BusState>) {
    let mut look = tokio::time::interval(PAUSE);
    while !state.is_closed() {
        look.tick().await;
        let (check, reach) = (bus.check().await, bus.reach());
        let is_lost = reach.is_err();
        let found = check.and(reach).err().map(|error| error.to_string());
        state.send_if_modified(|known| {
            let trouble = known.trouble.as_ref();
            let since = trouble.map_or_else(boot_now, |(since, _)| *since);
            let trouble = found.map(|words| (since, words));
            let now = BusState { is_lost, trouble };
            let changed = *known != now;
            *known = now;
            changed
        });
    }
}

/// The partitions of an owner that have waited for long enough to be told.
pub(crate) fn lasting(
    owner: &Owner,
    now: Millis,
    (bus, ends): (&BusState, Option<Trouble>),
) -> Refusals {
    let mut told = refused(owner, now);
    if let Some((since, words)) = bus
        .trouble
        .as_ref()
        .filter(|(at, _)| now - at >= WORTH_TELLING)
    {
        let what = if bus.is_lost {
            LeaseTrouble::NO_BROKER
        } else {
            LeaseTrouble::BROKER_ILL
        };
        for (partition, epoch) in owner.places() {
            told.entry(partition).or_insert_with(|| Refusal {
                epoch,
                since: *since,
                words: shortened(&format!("{what}: {words}")),
            });
        }
    }
    let of_all = |what: &'static str, trouble: Trouble| {
        let places = owner.places();
        places.map(move |(id, epoch)| headed(what, (id, epoch, trouble.clone())))
    };
    let partly = owner.partly_unread(now);
    let partly = partly.map(|it| headed(LeaseTrouble::PARTLY_UNREAD, it));
    let operations = owner.refused_operations(now);
    let operations = operations.chain(owner.waiting_operations(now));
    let operations = operations.map(|it| headed(LeaseTrouble::OPERATION_REFUSED, it));
    let aside = owner.set_aside_since(now);
    let aside = aside.map(|it| headed(LeaseTrouble::NOT_KEPT, it));
    let slow = owner.slow(now).into_iter();
    let slow = slow.flat_map(|trouble| of_all(LeaseTrouble::SLOW, trouble));
    let ends = ends.into_iter();
    let ends = ends.flat_map(|trouble| of_all(LeaseTrouble::NO_ENDS, trouble));
    for (partition, refusal) in worth_telling(now, ends) {
        told.entry(partition).or_insert(refusal);
    }
    for (partition, refusal) in
        worth_telling(now, partly.chain(aside).chain(operations).chain(slow))
    {
        told.entry(partition).or_insert(refusal);
    }
    told
}

fn refused(owner: &Owner, now: Millis) -> Refusals {
    let unread = owner.unread(now);
    let unread = unread.map(|it| headed(LeaseTrouble::UNREAD, it));
    // Of a partition that has both troubles the second is told.
    worth_telling(now, unread.chain(owner.refusals(now))).collect()
}

/// The trouble of one partition, in its epoch.
type Of = (PartitionId, Epoch, Trouble);

/// The same, with words before it by which others know what it means.
fn headed(what: &str, (partition, epoch, trouble): Of) -> Of {
    let words = format!("{what}: {}", trouble.words);
    (partition, epoch, Trouble { words, ..trouble })
}

fn worth_telling(
    now: Millis,
    troubles: impl Iterator<Item = Of>,
) -> impl Iterator<Item = (PartitionId, Refusal)> {
    let lasting = troubles.filter(|(.., trouble)| trouble.for_ms >= WORTH_TELLING);
    lasting.map(move |(partition, epoch, trouble)| {
        let refusal = Refusal {
            epoch,
            since: now - trouble.for_ms,
            words: shortened(&trouble.words),
        };
        (partition, refusal)
    })
}

/// At most [`MAX_WORDS`] bytes and an ellipsis, on one line.
fn shortened(words: &str) -> String {
    let line = words.replace(char::is_control, " ");
    if line.len() <= MAX_WORDS {
        return line;
    }
    let fits = line.char_indices().map(|(at, _)| at);
    let end = fits.take_while(|at| *at <= MAX_WORDS).last();
    format!("{}…", &line[..end.unwrap_or(0)])
}

/// Writes what has changed, beside the owner: the store that refuses may also be slow.
pub(crate) struct Teller {
    store: Arc<dyn PartitionStore>,
    owner: OwnerId,
    /// As it is.
    refusals: watch::Receiver<Refusals>,
    /// As it is written down.
    told: Refusals,
}

impl Teller {
    pub(crate) fn new(
        store: Arc<dyn PartitionStore>,
        owner: OwnerId,
        refusals: watch::Receiver<Refusals>,
    ) -> Self {
        Self {
            store,
            owner,
            refusals,
            told: Refusals::new(),
        }
    }

    /// Runs until the owner is gone. What it leaves behind ends with the owner's leases.
    pub(crate) async fn run(mut self) {
        loop {
            let now = self.refusals.borrow_and_update().clone();
            if now == self.told {
                if self.refusals.changed().await.is_err() {
                    return;
                }
                continue;
            }
            self.tell(now).await;
            let pause = tokio::time::sleep(PAUSE);
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    changed = self.refusals.changed() => if changed.is_err() {
                        return;
                    },
                }
            }
        }
    }

    async fn tell(&mut self, now: Refusals) {
        let notes = self.changes(&now);
        match self.store.note_trouble(self.owner, &notes).await {
            Ok(passed_over) => {
                let before = std::mem::replace(&mut self.told, now);
                for partition in passed_over {
                    let refusal = self.told.get(&partition).or(before.get(&partition));
                    if let Some(refusal) = refusal.cloned() {
                        self.doubt(partition, refusal);
                    }
                }
            }
            Err(error) => {
                let error = error_chain(&error);
                tracing::debug!(error, "which partitions wait could not be written down");
                for (partition, refusal) in now {
                    self.doubt(partition, refusal);
                }
            }
        }
    }

    /// What is written down about a partition is unknown: what is not well by then is written again,
    /// and taken back.
    fn doubt(&mut self, partition: PartitionId, mut refusal: Refusal) {
        refusal.words.clear();
        self.told.insert(partition, refusal);
    }

    /// What is to be written so that `now` is told.
    fn changes(&self, now: &Refusals) -> Vec<TroubleNote> {
        let at = boot_now();
        let new = now
            .iter()
            .filter(|(partition, refusal)| self.told.get(partition) != Some(refusal));
        let new = new.map(|(partition, refusal)| TroubleNote {
            partition: *partition,
            epoch: refusal.epoch,
            trouble: Some((duration(at - refusal.since), refusal.words.clone())),
        });
        let over = self
            .told
            .iter()
            .filter(|(partition, _)| !now.contains_key(partition));
        let over = over.map(|(partition, refusal)| TroubleNote {
            partition: *partition,
            epoch: refusal.epoch,
            trouble: None,
        });
        new.chain(over).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_is_shortened_and_stands_on_one_line() {
        assert_eq!(shortened("no space left"), "no space left");
        assert_eq!(shortened("no\nspace\0"), "no space ");
        assert_eq!(shortened(&"x".repeat(MAX_WORDS)).len(), MAX_WORDS);
        let long = shortened(&"€".repeat(MAX_WORDS));
        assert_eq!(long, format!("{}…", "€".repeat(MAX_WORDS / 3)));
    }
}
