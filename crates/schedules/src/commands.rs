//! The client of commands: who waits, what answers, who gives up.

use std::time::Duration;

use attune_core::{ExecutionId, PartitionId, Seq};
use attune_messages::v1::{Accepted, Answer, AnswerOutcome, Cancel};
use attune_messages::{decode, encode};
use chrono::Utc;
use shuttle::future::{block_on, spawn};
use shuttle::sync::Arc;
use uuid::Uuid;

use crate::client::{ClientOptions, CommandClient};
use crate::memory::MemoryBus;
use crate::port::{Bus, Outgoing, Subscription, Topic};
use crate::time;

const CALLS: Topic = Topic::Calls(PartitionId(0));
const PATIENCE: Duration = Duration::from_secs(10);

fn execution(seq: i64) -> ExecutionId {
    ExecutionId::new(PartitionId(0), Seq(seq))
}

/// An owner that answers every command until the bus is closed, and says how many there were.
async fn answer_all(bus: MemoryBus) -> usize {
    let subscription = Subscription {
        topic: CALLS,
        prefetch: 8,
    };
    let mut commands = bus.subscribe(subscription).await.unwrap();
    let settler = commands.settler();
    let mut answered = 0;
    while let Some(delivery) = commands.next().await {
        let reply_to = delivery.reply_to.clone().unwrap();
        let (message_id, commands) = decode::<Cancel>(&delivery.body, 1 << 20).unwrap();
        let answers: Vec<_> = commands
            .into_iter()
            .map(|command| Answer {
                request_id: command.request_id,
                message_id: Some(message_id),
                outcome: AnswerOutcome::Accepted(Accepted {
                    execution_id: Some(command.execution_id),
                    status: None,
                    position: None,
                    repeated: false,
                    priority: None,
                    explanation: None,
                }),
            })
            .collect();
        answered += answers.len();
        let id = Uuid::now_v7();
        let body = encode(id, Utc::now(), &answers);
        let reply = Outgoing::new(Topic::Reply(reply_to.to_string()), id, body);
        // Refused when the client is gone, closed when the bus is.
        drop(bus.publish(vec![reply]).await);
        settler.ack(&[delivery.tag]).await;
    }
    answered
}

async fn start(bus: &MemoryBus) -> CommandClient {
    bus.declare(&CALLS).await.unwrap();
    CommandClient::start(Arc::new(bus.clone()), ClientOptions::new(1))
        .await
        .unwrap()
}

/// A command that was answered may still be with the lane that has sent it, but not for long.
async fn until_forgotten(client: &CommandClient) {
    while client.stats().in_flight > 0 {
        shuttle::future::yield_now().await;
    }
}

/// Everyone who asks gets the answer to what it asked, also when others give up.
pub fn everyone_gets_its_own_answer() {
    block_on(async {
        let bus = MemoryBus::new();
        let client = start(&bus).await;
        let owner = spawn(answer_all(bus.clone()));
        let askers: Vec<_> = (1..=3)
            .map(|id| {
                let client = client.clone();
                spawn(async move {
                    let id = execution(id);
                    let accepted = client.cancel(id, PATIENCE).await.unwrap();
                    assert_eq!(accepted.execution_id, Some(id));
                })
            })
            .collect();
        let impatient = spawn({
            let client = client.clone();
            async move { drop(client.cancel(execution(9), PATIENCE).await) }
        });
        shuttle::future::yield_now().await;
        impatient.abort();
        for asker in askers {
            asker.await.unwrap();
        }
        drop(impatient.await);
        bus.close().await;
        assert!((3..=4).contains(&owner.await.unwrap()));
        until_forgotten(&client).await;
    });
}

/// When the bus closes or the time is over, everyone who waits is told so.
pub fn nobody_waits_for_ever() {
    block_on(async {
        let bus = MemoryBus::new();
        let client = start(&bus).await;
        let askers: Vec<_> = (1..=2)
            .map(|id| {
                let client = client.clone();
                spawn(async move { client.cancel(execution(id), PATIENCE).await })
            })
            .collect();
        let clock = spawn(async {
            time::advance(PATIENCE / 2);
            time::advance(PATIENCE / 2);
        });
        bus.close().await;
        for asker in askers {
            // Nobody has answered: the outcome is unknown, and that is said.
            asker.await.unwrap().unwrap_err();
        }
        clock.await.unwrap();
        until_forgotten(&client).await;
    });
}
