//! The command client against a scripted owner: one command, every way its answer can go.

use std::sync::Arc;

use attune_bus::{Bus, Outgoing, Topic};
use attune_commands::{ClientError, ClientOptions, CommandClient};
use attune_core::{ExecutionId, PartitionId, Reject, RejectCode, RequestId, Submission};
use attune_messages::v1::AnswerOutcome;
use uuid::Uuid;

use crate::support::{
    Fate, GatedBus, LONG, Owner, SHORT, accepted, client, id_of, memory_bus, rejected, request,
    round_trip, submit, within,
};

#[tokio::test]
async fn an_accepted_submission_has_the_owners_answer() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let request_id = RequestId::fresh();
    let given = submit(&client, request("core.echo", request_id), LONG);
    let pack = owner.next().await;
    assert_eq!(
        (pack.kind.as_str(), &*pack.request_ids),
        ("partition.submit", &[request_id][..])
    );
    owner.answer(&pack, |_| accepted(7)).await;
    assert_eq!(id_of(given.await.unwrap()), 7);

    // Without a request id it gets one.
    let made = submit(&client, Submission::new("core.echo"), LONG);
    let pack = owner.next().await;
    assert_ne!(pack.request_ids, [request_id]);
    owner.answer(&pack, |_| accepted(8)).await;
    assert_eq!(id_of(made.await.unwrap()), 8);
    assert_eq!(client.stats().unmatched_answers, 0);
}

#[tokio::test]
async fn each_command_goes_to_the_partition_it_belongs_to() {
    let bus = memory_bus();
    let mut owners = Vec::new();
    for partition in 0..16 {
        owners.push(Owner::start(&bus, partition).await);
    }
    let client = CommandClient::start(Arc::clone(&bus), ClientOptions::new(16))
        .await
        .unwrap();
    let home = PartitionId::of("core.http.get", 16);
    let asking = client.clone();
    let changed = tokio::spawn(async move { asking.action_changed("core.http.get", LONG).await });
    let pack = owners[usize::from(home.0)].next().await;
    assert_eq!(pack.kind, "partition.action_changed");
    assert_eq!(pack.about, ["core.http.get"]);
    owners[0].answer(&pack, |_| accepted(1)).await;
    changed.await.unwrap().unwrap();

    let execution = ExecutionId(0x12_3400_000b);
    assert_eq!(execution.partition(), PartitionId(11));
    let asking = client.clone();
    let cancelled = tokio::spawn(async move { asking.cancel(execution, LONG).await });
    let pack = owners[11].next().await;
    assert_eq!(pack.kind, "partition.cancel");
    assert_eq!(pack.about, [execution.to_string()]);
    owners[11].answer(&pack, |_| accepted(execution.0)).await;
    assert_eq!(id_of(cancelled.await.unwrap()), execution.0);

    // A partition that does not exist holds no execution.
    match client.cancel(ExecutionId(0x10), LONG).await {
        Err(ClientError::Rejected(reject)) => assert_eq!(reject.code, RejectCode::UnknownExecution),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_refusal_is_passed_on() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let task = submit(&client, Submission::new("core.echo"), LONG);
    let pack = owner.next().await;
    owner.answer(&pack, |_| rejected()).await;
    assert_eq!(
        task.await.unwrap(),
        Err(ClientError::Rejected(Reject::queue_full(100)))
    );
}

#[tokio::test]
async fn a_second_answer_is_counted_and_dropped() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let task = submit(&client, Submission::new("core.echo"), LONG);
    let pack = owner.next().await;
    owner.answer(&pack, |_| accepted(1)).await;
    owner.answer(&pack, |_| rejected()).await;
    assert_eq!(id_of(task.await.unwrap()), 1);
    round_trip(&client, &mut owner).await;
    assert_eq!(client.stats().unmatched_answers, 1);
}

#[tokio::test]
async fn without_an_answer_the_command_is_sent_once_more_and_then_unknown() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let request_id = RequestId::fresh();
    let task = submit(&client, request("core.echo", request_id), SHORT);
    let (first, second) = (owner.next().await, owner.next().await);
    assert_eq!(
        (&*first.request_ids, &*second.request_ids),
        (&[request_id][..], &[request_id][..])
    );
    assert_ne!(
        first.message_id, second.message_id,
        "it is a new message about the same request"
    );
    match task.await.unwrap() {
        Err(ClientError::NotConfirmed {
            request_id: named,
            reason,
        }) => {
            assert_eq!(
                (named, reason.as_str()),
                (request_id, "its owner has not answered")
            );
        }
        other => panic!("{other:?}"),
    }
    // A late answer finds nobody, and the bound on what is in flight is free again.
    owner.answer(&first, |_| accepted(1)).await;
    round_trip(&client, &mut owner).await;
    assert_eq!(client.stats().unmatched_answers, 1);
}

#[tokio::test]
async fn a_lost_answer_is_given_again() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let task = submit(&client, Submission::new("core.echo"), SHORT * 5);
    let lost = owner.next().await;
    let again = owner.next().await;
    assert_eq!(lost.request_ids, again.request_ids);
    owner.answer(&again, |_| accepted(5)).await;
    assert_eq!(id_of(task.await.unwrap()), 5);
    assert_eq!(client.stats().unmatched_answers, 0);
}

/// Its owner decides about each copy by itself: the second may be accepted when the first is not.
#[tokio::test]
async fn a_refusal_of_one_copy_is_not_the_last_word() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let task = submit(&client, Submission::new("core.echo"), SHORT * 5);
    let (first, second) = (owner.next().await, owner.next().await);
    owner.answer(&first, |_| rejected()).await;
    owner.answer(&second, |_| accepted(5)).await;
    assert_eq!(id_of(task.await.unwrap()), 5);

    let task = submit(&client, Submission::new("core.echo"), SHORT * 5);
    let (first, second) = (owner.next().await, owner.next().await);
    owner.answer(&first, |_| rejected()).await;
    owner.answer(&second, |_| rejected()).await;
    let refused = Err(ClientError::Rejected(Reject::queue_full(100)));
    assert_eq!(task.await.unwrap(), refused);

    let task = submit(&client, Submission::new("core.echo"), SHORT * 2);
    let first = owner.next().await;
    owner.next().await;
    owner.answer(&first, |_| rejected()).await;
    let unknown = matches!(task.await.unwrap(), Err(ClientError::NotConfirmed { .. }));
    assert!(unknown, "nobody knows what becomes of the other");
}

/// The answers to its first two copies come late: they say nothing of the third.
#[tokio::test]
async fn a_late_refusal_is_not_that_of_a_request_made_again() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let request_id = RequestId::fresh();
    let task = submit(&client, request("core.echo", request_id), SHORT);
    let (first, second) = (owner.next().await, owner.next().await);
    let unknown = task.await.unwrap();
    assert!(
        matches!(unknown, Err(ClientError::NotConfirmed { .. })),
        "{unknown:?}"
    );

    let task = submit(&client, request("core.echo", request_id), LONG);
    let third = owner.next().await;
    owner.answer(&first, |_| rejected()).await;
    owner.answer(&second, |_| rejected()).await;
    owner.answer(&third, |_| accepted(5)).await;
    assert_eq!(id_of(task.await.unwrap()), 5);
    // With nothing on its way, a refusal is one at once.
    let task = submit(&client, request("core.echo", request_id), LONG);
    let pack = owner.next().await;
    owner.answer(&pack, |_| rejected()).await;
    let refused = Err(ClientError::Rejected(Reject::queue_full(100)));
    assert_eq!(task.await.unwrap(), refused);
}

/// What is on its way under a request id is told to nobody who asks for something else under it.
#[tokio::test]
async fn a_late_answer_is_not_that_to_another_body() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let request_id = RequestId::fresh();
    let task = submit(&client, request("core.echo", request_id), SHORT);
    let (first, _second) = (owner.next().await, owner.next().await);
    let unknown = task.await.unwrap();
    assert!(
        matches!(unknown, Err(ClientError::NotConfirmed { .. })),
        "{unknown:?}"
    );

    let mut other = request("core.echo", request_id);
    other.requested_by = Some("somebody".to_owned());
    let task = submit(&client, other, LONG);
    let third = owner.next().await;
    owner.answer(&first, |_| accepted(5)).await;
    let conflict = Reject::new(RejectCode::Conflict, "used before");
    owner
        .answer(&third, |_| AnswerOutcome::Rejected(conflict.clone()))
        .await;
    let refused = Err(ClientError::Rejected(conflict.clone()));
    assert_eq!(task.await.unwrap(), refused);
    assert_eq!(client.stats().unmatched_answers, 1);
}

/// Copies are decided in their order: the refusal of the last is the last word, whatever became of
/// the answers to those before it; but what is done once is refused when it is done already.
#[tokio::test]
async fn the_refusal_of_the_last_copy_is_the_last_word() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let task = submit(&client, Submission::new("core.echo"), SHORT * 5);
    let (_first, second) = (owner.next().await, owner.next().await);
    owner.answer(&second, |_| rejected()).await;
    let refused = Err(ClientError::Rejected(Reject::queue_full(100)));
    assert_eq!(task.await.unwrap(), refused);

    const EXECUTION: ExecutionId = ExecutionId(0x100);
    let cancelling = client.clone();
    let cancel = async move { cancelling.cancel(EXECUTION, SHORT * 2).await };
    let task = tokio::spawn(cancel);
    let (_first, second) = (owner.next().await, owner.next().await);
    owner.answer(&second, |_| rejected()).await;
    let unknown = matches!(task.await.unwrap(), Err(ClientError::NotConfirmed { .. }));
    assert!(unknown, "the first may have done it");
}

/// An owner of an earlier release does not say which copy it refuses: all must be.
#[tokio::test]
async fn refusals_by_an_earlier_release_are_counted() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let task = submit(&client, Submission::new("core.echo"), SHORT * 5);
    let (first, second) = (owner.next().await, owner.next().await);
    owner.answer_as_before(&second, |_| rejected()).await;
    owner.answer_as_before(&first, |_| accepted(5)).await;
    assert_eq!(id_of(task.await.unwrap()), 5);

    let task = submit(&client, Submission::new("core.echo"), SHORT * 5);
    let (first, second) = (owner.next().await, owner.next().await);
    owner.answer_as_before(&first, |_| rejected()).await;
    owner.answer_as_before(&second, |_| rejected()).await;
    let refused = Err(ClientError::Rejected(Reject::queue_full(100)));
    assert_eq!(task.await.unwrap(), refused);
}

#[tokio::test]
async fn a_partition_without_owner_takes_nothing() {
    let bus = memory_bus();
    let client = client(&bus).await;
    let answered = client.submit(Submission::new("core.echo"), LONG).await;
    assert_eq!(answered, Err(ClientError::Unroutable(PartitionId(0))));
    // As soon as there is one, it works.
    let mut owner = Owner::start(&bus, 0).await;
    round_trip(&client, &mut owner).await;
}

#[tokio::test]
async fn an_unconfirmed_message_is_sent_again_under_its_id() {
    let (gated, _arrivals) = GatedBus::new(100);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    gated.fates([Fate::KeptUnconfirmed, Fate::Lost]);
    let task = submit(&client, Submission::new("core.echo"), LONG);
    let (first, again) = (owner.next().await, owner.next().await);
    assert_eq!(first.message_id, again.message_id);
    owner.answer(&again, |_| accepted(1)).await;
    assert_eq!(id_of(task.await.unwrap()), 1);
}

/// A message that is not confirmed is sent again without what was refused meanwhile: its owner could
/// accept that now.
#[tokio::test]
async fn what_was_refused_is_not_sent_once_more() {
    let (gated, _arrivals) = GatedBus::new(1);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    gated.fates([Fate::KeptLongUnconfirmed]);
    let (refused, waiting) = (RequestId::fresh(), RequestId::fresh());
    let submissions = vec![request("core.echo", refused), request("core.echo", waiting)];
    let asking = client.clone();
    let task = tokio::spawn(async move { asking.submit_many(submissions, LONG).await });
    let mut pack = owner.next().await;
    assert_eq!(pack.request_ids, [refused, waiting]);
    pack.request_ids = vec![refused];
    owner.answer(&pack, |_| rejected()).await;
    pack.request_ids = vec![RequestId::fresh()];
    owner.answer(&pack, |_| rejected()).await;
    within("the refusal has come", async {
        while client.stats().unmatched_answers == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    gated.open(10);
    let again = owner.next().await;
    assert_eq!(again.request_ids, [waiting]);
    assert_ne!(again.message_id, pack.message_id);
    owner.answer(&again, |_| accepted(5)).await;
    let mut outcomes = task.await.unwrap().into_iter();
    let told = outcomes.next().unwrap();
    assert_eq!(told, Err(ClientError::Rejected(Reject::queue_full(100))));
    assert_eq!(id_of(outcomes.next().unwrap()), 5);
}

/// Whoever asks twice for the same in one go has two refusals of one message.
#[tokio::test]
async fn one_request_twice_in_a_message_is_refused_at_once() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let one = request("core.echo", RequestId::fresh());
    let asking = client.clone();
    let task = tokio::spawn(async move { asking.submit_many(vec![one.clone(), one], LONG).await });
    let pack = owner.next().await;
    assert_eq!(pack.request_ids.len(), 2);
    owner.answer(&pack, |_| rejected()).await;
    let refused = Err(ClientError::Rejected(Reject::queue_full(100)));
    let outcomes = within("both are told long before the deadline", task).await;
    assert_eq!(outcomes.unwrap(), [refused.clone(), refused]);
    assert_eq!(client.stats().unmatched_answers, 0);
}

/// A message of a call that is over, which the broker may still get, comes after what is sent later:
/// a refusal says nothing of it.
#[tokio::test]
async fn a_stray_message_leaves_a_refusal_open() {
    let (gated, _arrivals) = GatedBus::new(0);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let request_id = RequestId::fresh();
    let task = submit(&client, request("core.echo", request_id), SHORT);
    let unknown = task.await.unwrap();
    assert!(
        matches!(unknown, Err(ClientError::NotConfirmed { .. })),
        "{unknown:?}"
    );
    gated.open(100);
    let task = submit(&client, request("core.echo", request_id), SHORT * 5);
    let (_stray, second) = (owner.next().await, owner.next().await);
    owner.answer(&second, |_| rejected()).await;
    let unknown = task.await.unwrap();
    assert!(
        matches!(unknown, Err(ClientError::NotConfirmed { .. })),
        "{unknown:?}"
    );
}

#[tokio::test]
async fn a_refusal_after_an_unconfirmed_attempt_is_not_taken_for_certain() {
    let (gated, _arrivals) = GatedBus::new(100);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    let client = client(&bus).await;
    gated.fates([Fate::Lost, Fate::Refused]);
    match client.submit(Submission::new("core.echo"), LONG).await {
        Err(ClientError::NotConfirmed { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_bus_that_never_confirms_leaves_the_outcome_unknown() {
    let (gated, mut arrivals) = GatedBus::new(0);
    let bus: Arc<dyn Bus> = Arc::clone(&gated) as _;
    let client = client(&bus).await;
    let task = submit(&client, Submission::new("core.echo"), SHORT);
    match task.await.unwrap() {
        Err(ClientError::NotConfirmed { reason, .. }) => {
            assert_eq!(reason, "the bus has not confirmed it");
        }
        other => panic!("{other:?}"),
    }
    // While the first attempt was under way, nothing was sent a second time.
    assert!(arrivals.try_recv().is_ok());
    assert!(arrivals.try_recv().is_err());
}

#[tokio::test]
async fn a_closed_bus_ends_the_wait_at_once() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let task = submit(&client, Submission::new("core.echo"), LONG * 100);
    owner.next().await;
    bus.close().await;
    let answered = within("it ends before its deadline", task).await.unwrap();
    assert!(
        matches!(answered, Err(ClientError::NotConfirmed { .. })),
        "{answered:?}"
    );
    let answered = within(
        "it ends at once",
        client.submit(Submission::new("a.b"), LONG * 100),
    );
    assert!(matches!(
        answered.await,
        Err(ClientError::NotConfirmed { .. })
    ));
}

#[tokio::test]
async fn what_is_no_answer_is_counted_and_dropped() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let task = submit(&client, Submission::new("core.echo"), LONG);
    let pack = owner.next().await;
    for body in ["", "{}", "nonsense"] {
        let topic = Topic::Reply(pack.reply_to.clone());
        bus.publish(vec![Outgoing::new(topic, Uuid::now_v7(), body)])
            .await
            .unwrap();
    }
    owner.answer(&pack, |_| accepted(1)).await;
    assert_eq!(id_of(task.await.unwrap()), 1);
    assert_eq!(client.stats().unreadable_answers, 3);
}

#[tokio::test]
async fn callers_that_repeat_a_request_share_its_answer() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let request_id = RequestId::fresh();
    let first = submit(&client, request("core.echo", request_id), LONG);
    let pack = owner.next().await;
    let second = submit(&client, request("core.echo", request_id), LONG);
    owner.next().await;
    // The same id for something else is a conflict, and nothing is sent for it.
    match client.submit(request("core.noop", request_id), LONG).await {
        Err(ClientError::Rejected(reject)) => assert_eq!(reject.code, RejectCode::Conflict),
        other => panic!("{other:?}"),
    }
    owner.answer(&pack, |_| accepted(4)).await;
    let (first, second) = (
        first.await.unwrap().unwrap(),
        second.await.unwrap().unwrap(),
    );
    assert_eq!(
        [first.execution_id, second.execution_id],
        [Some(ExecutionId(4)); 2]
    );
    assert_eq!((first.repeated, second.repeated), (false, true));
    round_trip(&client, &mut owner).await;
}

#[tokio::test]
async fn dropping_the_last_client_ends_its_address() {
    let bus = memory_bus();
    let mut owner = Owner::start(&bus, 0).await;
    let client = client(&bus).await;
    let task = submit(&client, Submission::new("core.echo"), LONG);
    let pack = owner.next().await;
    owner.answer(&pack, |_| accepted(1)).await;
    task.await.unwrap().unwrap();
    drop(client);
    // The address is free again once the listener has ended.
    let topic = Topic::Reply(pack.reply_to);
    within("the address becomes free", async {
        while bus
            .subscribe(attune_bus::Subscription {
                topic: topic.clone(),
                prefetch: 1,
            })
            .await
            .is_err()
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
