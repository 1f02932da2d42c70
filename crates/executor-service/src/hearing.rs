//! What an executor is told by others than the owners of executions: reports of workers, and hints.

use std::sync::Arc;

use attune_bus::Delivery;
use attune_executor::Input;
use attune_messages::decode_batch;
use attune_messages::v1::HandedOver;
use attune_messages::v2::WorkerReport;
use attune_routing::Sender;

use crate::convert;
use crate::driver::{Driver, MAX_DELIVERED};

impl Driver {
    /// Reads what workers say, as much as has arrived.
    pub(crate) async fn report(&mut self, delivery: Option<Delivery>) -> Input {
        let (Some(first), Some(subscriber)) = (delivery, &mut self.reports) else {
            self.reports = None;
            return Input::Timer;
        };
        let (mut reports, mut tags, mut next) = (Vec::new(), Vec::new(), Some(first));
        while let Some(delivery) = next {
            tags.push(delivery.tag);
            let user = match self.senders.judge(delivery.user_id.as_deref()) {
                Ok(Sender::User(user) | Sender::Impersonator(user)) => Some(Arc::from(user)),
                Ok(Sender::Oneself | Sender::Unknown) => None,
                Err(why) => {
                    tracing::debug!(why, "a worker's report counts for nothing");
                    next = subscriber.try_next();
                    continue;
                }
            };
            match decode_batch::<WorkerReport>(&delivery.body, self.max_message_bytes) {
                Ok(items) => {
                    let items = items.into_iter();
                    reports.extend(items.map(|item| convert::report(item, user.as_ref())));
                }
                // Whoever said it says it again, or is compared.
                Err(error) => tracing::debug!(%error, "a worker's report cannot be read"),
            }
            if tags.len() >= MAX_DELIVERED {
                break;
            }
            next = subscriber.try_next();
        }
        subscriber.settler().ack(&tags).await;
        Input::Reported(reports)
    }

    /// Workers have come, hear again, or are about to stop.
    pub(crate) async fn hello(&mut self, delivery: Option<Delivery>) -> Input {
        let (Some(delivery), Some(hellos)) = (delivery, &self.hellos) else {
            self.hellos = None;
            return Input::Timer;
        };
        let workers = convert::hello(&delivery.body, self.max_message_bytes);
        hellos.settler().ack(&[delivery.tag]).await;
        Input::Hello(workers)
    }

    /// Reads which partitions were handed over to this owner.
    pub(crate) async fn hint(&mut self, delivery: Option<Delivery>) -> Input {
        let (Some(delivery), Some(hints)) = (delivery, &self.hints) else {
            self.hints = None;
            return Input::Timer;
        };
        hints.settler().ack(&[delivery.tag]).await;
        match decode_batch::<HandedOver>(&delivery.body, self.max_message_bytes) {
            Ok(hints) => {
                let mine = hints.iter().filter(|hint| hint.to == self.calls.owner);
                Input::HandedOver(mine.map(|hint| hint.partition).collect())
            }
            Err(error) => {
                tracing::debug!(%error, "a hint cannot be read");
                Input::Timer
            }
        }
    }
}
