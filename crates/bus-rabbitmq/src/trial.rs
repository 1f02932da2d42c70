//! One message on a channel of its own, where nobody is harmed when the broker closes that.

use std::time::Duration;

use attune_bus::Refusal;
use lapin::options::ConfirmSelectOptions;
use tokio::time::timeout;

use crate::cause::Closed;
use crate::link::Life;
use crate::message::Prepared;

/// What became of the message.
pub(crate) enum Tried {
    /// The user may publish it; why it was not taken all the same, if so.
    Judged(Option<Refusal>),
    /// The broker closed the channel.
    Closed(Closed),
    /// Nobody knows.
    Unknown(String),
}

/// Publishes a message; in at most this time.
pub(crate) async fn publish(life: &Life, message: Prepared, limit: Duration) -> Tried {
    match timeout(limit, publish_alone(life, message)).await {
        Ok(Ok(refusal)) => Tried::Judged(refusal),
        Ok(Err(error)) => match Closed::of(&error) {
            Some(closed) => Tried::Closed(closed),
            None => Tried::Unknown(error.to_string()),
        },
        Err(_) => Tried::Unknown("the broker does not answer".to_owned()),
    }
}

async fn publish_alone(life: &Life, message: Prepared) -> lapin::Result<Option<Refusal>> {
    let channel = life.connection().create_channel().await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let confirmation = message.publish_on(&channel).await?;
    let refusal = match confirmation.is_ack() {
        // It is acked as well when nobody is there.
        true => confirmation.take_message().map(|_| Refusal::Unroutable),
        false => Some(Refusal::Full),
    };
    // The broker has said what matters.
    channel.close(200, "done".into()).await.ok();
    Ok(refusal)
}
