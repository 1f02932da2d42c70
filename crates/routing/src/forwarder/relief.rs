//! Makes room in the window for what can go on.

use std::time::Duration;

use attune_messages::encode_raw;
use uuid::Uuid;

use super::lane::{Carries, Parcel};
use super::{Forwarder, Newer, cut};
use crate::port::{DeliveryId, Message, Now, Target};
use crate::router::Ids;
use crate::rules::Rules;

/// How often something may be put back to make room.
const RELIEF_INTERVAL: Duration = Duration::from_secs(1);
/// How long a partition may take nothing before what must keep its order becomes dead letters, if
/// it fills the window.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often messages of a newer version may be put back: what stands behind them is not to wait long.
const NEWER_INTERVAL: Duration = Duration::from_millis(250);
/// How many messages of a newer version are held for a while, at most, and which share of the window.
const NEWER_KEPT: usize = 16;
const NEWER_SHARE: usize = 8;
/// How long they are held before they go back, where another program of the same kind could read them,
/// and where none could: shorter than the `consumer_timeout` of a broker, which would give back everything
/// else that came over the same connection.
const NEWER_STAYS: Duration = Duration::from_secs(5);
const NEWER_STAYS_IN_ORDER: Duration = Duration::from_secs(60);
/// How long after the last one was seen an operator is told.
const NEWER_TOLD: Duration = Duration::from_secs(15);

impl<R: Rules> Forwarder<R> {
    /// Whether what is held leaves little room for anything else.
    fn is_crowded(&self) -> bool {
        self.held.len() * 4 >= self.bounds.window * 3
            || self.held_bytes / 3 * 4 >= self.bounds.window_bytes
    }

    /// From when on something of a lane may be moved elsewhere to make room, if anything is stuck.
    fn relieved_at(&self, target: Target) -> Option<Duration> {
        let lane = self.lanes.get(&target).filter(|lane| !lane.is_empty())?;
        let in_order = R::ORDERED && matches!(target, Target::Partition(_));
        match target {
            Target::Back => None,
            // What is on its way may be kept: nothing may overtake it.
            _ if in_order => lane.failing_for(PATIENCE).filter(|_| !lane.is_sending()),
            _ => lane.failing_for(Duration::ZERO).or(lane.slow_at()),
        }
    }

    /// When room can be made next.
    pub(super) fn next_relief(&self) -> Option<Duration> {
        if !self.is_crowded() {
            return None;
        }
        let lanes = self.lanes.keys();
        let first = lanes.filter_map(|target| self.relieved_at(*target)).min()?;
        Some(first.max(self.next_relief))
    }

    /// When messages of a newer version are put back next.
    pub(super) fn next_newer(&self) -> Option<Duration> {
        if self.newer.len() > self.newer_kept() {
            return Some(self.next_back);
        }
        let oldest = self.newer.front()?;
        Some(self.next_back.max(oldest.since + Self::newer_stays()))
    }

    fn newer_stays() -> Duration {
        if R::ORDERED {
            NEWER_STAYS_IN_ORDER
        } else {
            NEWER_STAYS
        }
    }

    fn newer_kept(&self) -> usize {
        NEWER_KEPT.min(self.bounds.window / NEWER_SHARE)
    }

    pub(super) fn newer_is_seen(&self) -> bool {
        let lately = |at: Duration| self.elapsed < at + NEWER_TOLD;
        !self.newer.is_empty() || self.newer_seen.is_some_and(lately)
    }

    /// Moves what is stuck to where it is out of the way, at most once in a while.
    pub(super) fn relieve(&mut self, now: Now, ids: &mut Ids) {
        let crowded = self.next_relief().is_some_and(|at| at <= now.elapsed);
        let newer = self.next_newer().is_some_and(|at| at <= now.elapsed);
        if !crowded && !newer {
            return;
        }
        if newer {
            self.next_back = now.elapsed + NEWER_INTERVAL;
            self.put_newer_back(now.elapsed);
        }
        if crowded {
            self.next_relief = now.elapsed + RELIEF_INTERVAL;
            let targets = self.lanes.keys().copied();
            let stuck: Vec<Target> = targets
                .filter(|target| {
                    self.relieved_at(*target)
                        .is_some_and(|at| at <= now.elapsed)
                })
                .collect();
            for target in stuck {
                self.clear(now, target, ids);
            }
        }
    }

    /// Those above the bound, and those that have waited a while: a newer program may get them. Each
    /// says how often it went back, and those of which a later copy went back meanwhile are not needed.
    fn put_newer_back(&mut self, now: Duration) {
        let kept = self.newer_kept();
        let mut back = self.newer.split_off(kept.min(self.newer.len()));
        let due = self
            .newer
            .partition_point(|one| now >= one.since + Self::newer_stays());
        let oldest: Vec<_> = self.newer.drain(..due).chain(back.drain(..)).collect();
        for Newer {
            copy, mut parcel, ..
        } in oldest
        {
            if self.copies.is_outdated(copy) {
                self.settle(&parcel.deliveries);
                continue;
            }
            copy.mark(&mut parcel.message.headers);
            self.lane(Target::Back).parcels.push_back(parcel);
        }
    }

    /// Moves everything of a lane that is not on its way elsewhere.
    fn clear(&mut self, now: Now, target: Target, ids: &mut Ids) {
        let lane = self.lane(target);
        let parcels = std::mem::take(&mut lane.parcels);
        let items = std::mem::take(&mut lane.items);
        for parcel in parcels {
            match (parcel.carries, target) {
                (Carries::Items(items), Target::Partition(partition)) => {
                    let reply_to = parcel.message.reply_to;
                    for ((item, _), delivery) in items.into_iter().zip(parcel.deliveries) {
                        let item = R::turn_back(&item);
                        let why = stuck(partition.0);
                        self.turn_back(now, ids, &item, reply_to.clone(), delivery, &why);
                    }
                }
                (Carries::Letter(reply_to), _) => {
                    let message = Message {
                        reply_to,
                        reason: None,
                        ..parcel.message
                    };
                    self.lane(Target::Back).parcels.push_back(Parcel {
                        message,
                        carries: Carries::Unread(None),
                        deliveries: parcel.deliveries,
                    });
                }
                (carries, _) => {
                    let parcel = Parcel { carries, ..parcel };
                    self.lane(target).parcels.push_back(parcel);
                }
            }
        }
        let Target::Partition(partition) = target else {
            return;
        };
        let why = stuck(partition.0);
        for waiting in items {
            let item = R::turn_back(&waiting.item);
            self.turn_back(now, ids, &item, waiting.reply_to, waiting.delivery, &why);
        }
    }

    /// An item leaves its partition's lane: for the dead letters where its order counts, else for
    /// the end of its topic.
    fn turn_back(
        &mut self,
        now: Now,
        ids: &mut Ids,
        item: &serde_json::value::RawValue,
        reply_to: Option<String>,
        delivery: DeliveryId,
        why: &str,
    ) {
        let message_id: Uuid = ids();
        let body = encode_raw::<R::In>(message_id, now.wall, &[item]).into();
        let (target, message, carries) = if R::ORDERED {
            let message = Message {
                message_id,
                body,
                reply_to: None,
                headers: Vec::new(),
                reason: Some(cut(why)),
            };
            (Target::Letters, message, Carries::Letter(reply_to))
        } else {
            let message = Message {
                message_id,
                body,
                reply_to,
                headers: Vec::new(),
                reason: None,
            };
            (Target::Back, message, Carries::Unread(None))
        };
        self.lane(target).parcels.push_back(Parcel {
            message,
            carries,
            deliveries: vec![delivery],
        });
    }

    /// The items of a message that the bus will never carry become dead letters.
    pub(super) fn bury_items(
        &mut self,
        now: Now,
        ids: &mut Ids,
        parcel: Parcel<R::Note>,
        why: &str,
    ) {
        let Carries::Items(items) = parcel.carries else {
            return;
        };
        for ((item, _), delivery) in items.into_iter().zip(parcel.deliveries) {
            let message_id: Uuid = ids();
            let item = R::turn_back(&item);
            let message = Message {
                message_id,
                body: encode_raw::<R::In>(message_id, now.wall, &[&item]).into(),
                reply_to: None,
                headers: Vec::new(),
                reason: Some(cut(why)),
            };
            self.lane(Target::Letters).parcels.push_back(Parcel {
                message,
                carries: Carries::Letter(None),
                deliveries: vec![delivery],
            });
        }
    }
}

fn stuck(partition: u16) -> String {
    format!(
        "partition {partition} has taken nothing for too long: its queue is full, or nobody has \
         declared it; put this back when it takes messages again"
    )
}
