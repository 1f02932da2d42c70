//! The command client against a scripted owner.

use std::sync::Arc;
use std::time::Duration;

use attune_bus::client::{ClientError, ClientOptions, CommandClient};
use attune_bus::memory::MemoryBus;
use attune_bus::{Bus, Outgoing, Topic};
use attune_core::{ExecutionId, PartitionId, Reject, RejectCode, RequestId, Submission};
use attune_messages::v1::{Accepted, AnswerOutcome};
use serde_json::value::RawValue;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::support::{Fate, GatedBus, LONG, Owner, SHORT, accepted, rejected, within};

type Answered = Result<Accepted, ClientError>;

fn memory_bus() -> Arc<dyn Bus> {
    Arc::new(MemoryBus::new())
}

async fn client(bus: &Arc<dyn Bus>) -> CommandClient {
    CommandClient::start(Arc::clone(bus), ClientOptions::new(1)).await.unwrap()
}

fn submit(client: &CommandClient, submission: Submission, deadline: Duration) -> JoinHandle<Answered> {
    let client = client.clone();
    tokio::spawn(async move { client.submit(submission, deadline).await })
}

fn id_of(answered: Answered) -> i64 {
    answered.unwrap().execution_id.unwrap().0
}

/// Sends one more command and has it answered: whatever was sent to the client before has then
/// been taken in.
async fn round_trip(client: &CommandClient, owner: &mut Owner) {
    let task = submit(client, Submission::new("core.marker"), LONG);
    let pack = owner.next().await;
    assert_eq!(pack.about, ["core.marker"]);
    owner.answer(&pack, |_| accepted(0)).await;
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_accepted_submission_has_the_owners_answer() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let request_id = RequestId::fresh();
    let mut submission = Submission::new("core.echo");
    submission.request_id = Some(request_id);
    let given = submit(&client, submission, LONG);
    let pack = owner.next().await;
    assert_eq!((pack.kind.as_str(), &pack.request_ids), ("partition.submit", &vec![request_id]));
    owner.answer(&pack, |_| accepted(7)).await;
    assert_eq!(id_of(given.await.unwrap()), 7);

    // Without a request id it gets one.
    let made = submit(&client, Submission::new("core.echo"), LONG);
    let pack = owner.next().await;
    assert_ne!(pack.request_ids, [request_id]);
    owner.answer(&pack, |_| accepted(8)).await;
    assert_eq!(id_of(made.await.unwrap()), 8);
    assert_eq!(client.stats().in_flight, 0);
}

#[tokio::test]
async fn each_command_goes_to_the_partition_it_belongs_to() {
    let bus = memory_bus();
    let mut owners = Vec::new();
    for partition in 0..16 {
        owners.push(Owner::start(&bus, partition).await);
    }
    let client = CommandClient::start(Arc::clone(&bus), ClientOptions::new(16)).await.unwrap();
    let home = PartitionId::of("core.http.get", 16);
    let owner = &mut owners[usize::from(home.0)];
    let asking = client.clone();
    let changed = tokio::spawn(async move { asking.action_changed("core.http.get", LONG).await });
    let pack = owner.next().await;
    assert_eq!((pack.kind.as_str(), pack.about.as_slice()), ("partition.action_changed", &["core.http.get".to_owned()][..]));
    owner.answer(&pack, |_| accepted(1)).await;
    changed.await.unwrap().unwrap();

    let execution = ExecutionId(0x1234_0000_0b);
    assert_eq!(execution.partition(), PartitionId(11));
    let asking = client.clone();
    let cancelled = tokio::spawn(async move { asking.cancel(execution, LONG).await });
    let pack = owners[11].next().await;
    assert_eq!((pack.kind.as_str(), pack.about), ("partition.cancel", vec![execution.to_string()]));
    owners[11].answer(&Pack0(&pack.reply_to, &pack.request_ids).into(), |_| rejected()).await;
    assert_eq!(cancelled.await.unwrap(), Err(ClientError::Rejected(Reject::queue_full(100))));

    // A partition that does not exist holds no execution.
    match client.cancel(ExecutionId(0x10), LONG).await {
        Err(ClientError::Rejected(reject)) => assert_eq!(reject.code, RejectCode::UnknownExecution),
        other => panic!("{other:?}"),
    }
}
