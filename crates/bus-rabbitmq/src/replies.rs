//! The broker's direct replies: answers without a queue.

use std::sync::Arc;

use attune_bus::{Outgoing, Topic};
use tokio::sync::{OnceCell, Semaphore};

use crate::Phase;
use crate::cause::Cause;
use crate::dial::Dialer;
use crate::options::RabbitOptions;
use crate::publisher::Publisher;
use crate::topology::Topology;

/// How the addresses begin behind which RabbitMQ answers without a queue.
const DIRECT_REPLY: &str = "amq.rabbitmq.reply-to.";
/// How many calls may be under way; what comes beyond is lost, as any such answer may be.
const MAX_UNDER_WAY: usize = 64;

/// Whether a message is a direct reply.
pub(crate) fn is_direct(message: &Outgoing) -> bool {
    matches!(&message.topic, Topic::Reply(address) if address.starts_with(DIRECT_REPLY))
}

/// A connection for direct replies, made with the first of them.
///
/// The broker closes the connection of whoever publishes to such an address that it has not made, and
/// that cannot be told from here: it shall cost no dispatch, and no answer to anybody else.
pub(crate) struct Replies {
    dialer: Dialer,
    topology: Arc<Topology>,
    options: RabbitOptions,
    links: Phase,
    publishing: Phase,
    publisher: OnceCell<Publisher>,
    under_way: Arc<Semaphore>,
}

impl Replies {
    /// `dialer` knows how to make the connection; it ends with `links`, and before it what is being
    /// published with `publishing`.
    pub(crate) fn new(
        dialer: Dialer,
        topology: Arc<Topology>,
        options: RabbitOptions,
        links: Phase,
        publishing: Phase,
    ) -> Self {
        Self {
            dialer,
            topology,
            options,
            links,
            publishing,
            publisher: OnceCell::new(),
            under_way: Arc::new(Semaphore::new(MAX_UNDER_WAY)),
        }
    }

    /// Publishes direct replies beside everything else.
    pub(crate) fn send(self: &Arc<Self>, replies: Vec<Outgoing>) {
        let Ok(permit) = Arc::clone(&self.under_way).try_acquire_owned() else {
            tracing::debug!("direct replies are lost: too many are not confirmed");
            return;
        };
        let own = Arc::clone(self);
        self.publishing.tasks.spawn(async move {
            let published = match own.publisher().await {
                Ok(publisher) => publisher.publish(replies).await,
                Err(cause) => {
                    tracing::debug!(%cause, "no connection for direct replies; some are lost");
                    return;
                }
            };
            if let Err(error) = published {
                tracing::debug!(%error, "direct replies may be lost");
            }
            drop(permit);
        });
    }

    async fn publisher(&self) -> Result<&Publisher, Cause> {
        let make = async || {
            let first = self.dialer.dial().await?;
            let link = self.links.link(self.dialer.clone(), first);
            Ok(self
                .publishing
                .publisher(link, &self.topology, &self.options))
        };
        self.publisher.get_or_try_init(make).await
    }
}
