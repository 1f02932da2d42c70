//! Commands whose sender waits for the answer have a topic of their own.

use attune_bus::{Bus as _, MemoryBus, Outgoing, Subscriber, Subscription, Topic};
use attune_core::{PartitionId, RequestId, Submission};
use attune_messages::v1::{Accepted, Answer, AnswerOutcome, OnReject, Submit};
use attune_messages::{decode, encode};
use chrono::Utc;
use uuid::Uuid;

use crate::system::{PARTITIONS, System, until};

const ADDRESS: &str = "attune.reply.somebody";

/// Sends a call, and gives the answer.
async fn call(bus: &MemoryBus, answers: &mut Subscriber, item: &Submit) -> Accepted {
    let partition = PartitionId::of(&item.submission.action_ref, PARTITIONS);
    let id = Uuid::now_v7();
    let body = encode(id, Utc::now(), std::slice::from_ref(item));
    let mut message = Outgoing::new(Topic::Calls(partition), id, body);
    message.reply_to = Some(ADDRESS.to_owned());
    bus.publish(vec![message]).await.unwrap();
    let delivery = answers.next().await.unwrap();
    answers.settler().ack(&[delivery.tag]).await;
    let (_, answered) = decode::<Answer>(&delivery.body, 1 << 20).unwrap();
    match &answered[..] {
        [
            Answer {
                request_id,
                message_id: Some(of),
                outcome: AnswerOutcome::Accepted(accepted),
            },
        ] => {
            assert_eq!((Some(*request_id), *of), (item.submission.request_id, id));
            accepted.clone()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_answered_each_time_and_carried_out_once() {
    let system = System::new().await;
    let refs = system.actions().await;
    let topic = Topic::Reply(ADDRESS.to_owned());
    let subscription = Subscription { topic, prefetch: 8 };
    let mut answers = system.bus.subscribe(subscription).await.unwrap();
    let _member = system.member("only").await;
    let mut submission = Submission::new(refs[0].clone());
    submission.request_id = Some(RequestId::fresh());
    submission.parameters =
        serde_json::value::to_raw_value(&serde_json::json!({"number": 0})).unwrap();
    let item = Submit {
        submission,
        on_reject: OnReject::Answer,
        wait_bound: None,
    };
    let first = call(&system.bus, &mut answers, &item).await;
    let again = call(&system.bus, &mut answers, &item).await;
    assert_eq!((first.repeated, again.repeated), (false, true));
    assert_eq!(first.execution_id, again.execution_id);
    system.all_ran(&refs[..1], 1).await;
    let calls = Topic::Calls(PartitionId::of(&refs[0], PARTITIONS));
    until("calls are acknowledged", async || {
        (system.bus.unsettled(&calls) == 0).then_some(())
    })
    .await;
}
