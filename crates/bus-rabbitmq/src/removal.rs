//! Takes away what a bus has declared, for systems that exist for a while.

use attune_bus::{BusError, Topic};
use lapin::Channel;
use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions};
use tokio::time::timeout;

use crate::RabbitBus;
use crate::cause::Cause;
use crate::link::Life;
use crate::topology::Declared;

impl RabbitBus {
    /// Deletes the durable queues of these topics, with whatever they hold, then the dead
    /// letters and the exchanges. For systems under a prefix of their own that exist for a
    /// while, such as benchmarks; nothing may use them any more. What is not there is fine.
    ///
    /// # Errors
    /// When the broker cannot be reached, or refuses; some of it may be deleted then.
    pub async fn remove(&self, topics: &[Topic]) -> Result<(), BusError> {
        let life = match timeout(self.connect_timeout, self.consuming.life_after(0)).await {
            Ok(Some(life)) => life,
            Ok(None) => return Err(BusError::Closed),
            Err(_) => return Err(self.unavailable()),
        };
        let declared = self.topology.declared(topics)?;
        match timeout(self.connect_timeout, delete(&life, declared)).await {
            Ok(deleted) => Ok(deleted?),
            Err(_) => Err(BusError::Unavailable(
                "the broker does not answer".to_owned(),
            )),
        }
    }
}

async fn delete(life: &Life, declared: Declared) -> Result<(), Cause> {
    let opened = life.connection().create_channel().await;
    let channel: Channel = opened.map_err(|error| Cause::of(&error))?;
    for name in declared.queues {
        channel
            .queue_delete(name.clone(), QueueDeleteOptions::default())
            .await
            .map_err(|error| Cause::of(&error).during(&format!("deleting queue {name}")))?;
    }
    for name in declared.exchanges {
        channel
            .exchange_delete(name.clone(), ExchangeDeleteOptions::default())
            .await
            .map_err(|error| Cause::of(&error).during(&format!("deleting exchange {name}")))?;
    }
    let closed = channel.close(200, "done".into()).await;
    closed.map_err(|error| Cause::of(&error))
}
