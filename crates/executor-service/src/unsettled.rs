//! Messages that were brought to the owner and are not settled yet.

use std::collections::HashMap;
use std::sync::Arc;

use attune_bus::{DeliveryTag, Settler};
use attune_executor::owner::{DeliveryId, SubscriptionId, Work};
use tokio::time::Instant;

use crate::feed::Inbound;
use crate::figures::ExecutorFigures;

/// Deliveries that are done with, by what settles them.
pub(crate) type Settled = Vec<(Settler, Vec<DeliveryTag>)>;

/// What settles a delivery, and through which subscription it came.
struct Delivery {
    subscription: SubscriptionId,
    settler: Settler,
    tag: DeliveryTag,
    /// When ends of runs came, if it is made of such.
    ends_since: Option<Instant>,
}

/// What was delivered and is not done with.
#[derive(Default)]
pub(crate) struct Unsettled(HashMap<DeliveryId, Delivery>);

impl Unsettled {
    /// A delivery is brought to the owner.
    pub(crate) fn insert(&mut self, inbound: &Inbound) {
        let delivered = &inbound.delivered;
        let delivery = Delivery {
            subscription: delivered.subscription,
            settler: Arc::clone(&inbound.settler),
            tag: inbound.tag,
            ends_since: matches!(delivered.work, Work::Completions(_)).then(Instant::now),
        };
        self.0.insert(delivered.id, delivery);
    }

    /// What came through a subscription that has ended goes back.
    pub(crate) fn forget(&mut self, subscription: SubscriptionId) {
        self.0
            .retain(|_, delivery| delivery.subscription != subscription);
    }

    /// What settles these deliveries, in the order in which they were delivered; and whether nothing is
    /// missing.
    ///
    /// What they led to is stored, and told to the workers before this is called, so that ends of runs have
    /// handed their slots on.
    pub(crate) fn settle(
        &mut self,
        deliveries: &[DeliveryId],
        figures: &ExecutorFigures,
    ) -> (Settled, bool) {
        let mut settled: Settled = Vec::new();
        let mut are_all = true;
        for delivery in deliveries {
            let Some(Delivery {
                settler,
                tag,
                ends_since,
                ..
            }) = self.0.remove(delivery)
            else {
                are_all = false;
                continue;
            };
            if let Some(since) = ends_since {
                figures.handoff.record(since.elapsed());
            }
            match settled
                .iter_mut()
                .find(|(known, _)| Arc::ptr_eq(known, &settler))
            {
                Some((_, tags)) => tags.push(tag),
                None => settled.push((settler, vec![tag])),
            }
        }
        (settled, are_all)
    }
}
