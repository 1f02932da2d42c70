//! Messages have a bound: what fits alone and not together is sent apart, and what does not fit
//! at all holds up nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use attune_bus::{Bus as _, MemoryBus, Room, Topic};
use attune_core::{ActionSpec, Builtin, ExecutionId, RequestId, Run, Submission};
use attune_executor::Counter;
use attune_executor_service::ExecutorOptions;
use attune_messages::v1::EnforcementCreated;
use attune_messages::{decode_batch, encode};
use attune_store::{ActionStore as _, DeadLetterFilter, DeadLetterStore as _};
use chrono::Utc;
use serde_json::value::to_raw_value;
use uuid::Uuid;

use crate::lives::Life;
use crate::member::Member;
use crate::system::{PARTITIONS, System, until};

/// How large a message may be.
const LARGEST: usize = 64 * 1024;

/// A bus with that bound, and an executor that knows it.
async fn bounded() -> (System, Member) {
    let system = System::on(MemoryBus::with_bounds(Room::default(), LARGEST)).await;
    let member = bounded_member(&system, "one").await;
    (system, member)
}

async fn bounded_member(system: &System, name: &str) -> Member {
    let options = ExecutorOptions {
        max_message_bytes: LARGEST,
        ..System::options(name)
    };
    let member = Member::start(system, options).await;
    member.serves(usize::from(PARTITIONS)).await;
    member
}

/// A firing of an action, numbered by the client, whose message has so many bytes at least.
fn firing(action_ref: &str, number: u64, bytes: usize) -> Vec<u8> {
    let encoded = |pad: usize| {
        let mut submission = Submission::new(action_ref);
        submission.request_id = Some(RequestId::fresh());
        let parameters = serde_json::json!({"number": number, "pad": "x".repeat(pad)});
        submission.parameters = to_raw_value(&parameters).unwrap();
        encode(
            Uuid::now_v7(),
            Utc::now(),
            &[EnforcementCreated(submission)],
        )
    };
    encoded(bytes.saturating_sub(encoded(0).len()))
}

/// What its action adds to a dispatch counts as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dispatches_that_fit_alone_are_sent_apart_when_they_do_not_fit_together() {
    const COUNT: u64 = 20;
    let (system, member) = bounded().await;
    let program = ["/bin/true".to_owned(), "x".repeat(10_000)];
    let mut spec = ActionSpec::new("test.wordy".parse().unwrap(), Run::Program(program.into()));
    spec.pool = "wordy".to_owned();
    system
        .store
        .apply_action(&spec, PARTITIONS, "test")
        .await
        .unwrap();
    let ever = Duration::from_secs(600);
    let mut life = Life::begin(&system.store, &system.bus, "wordy", 100, ever).await;
    for number in 0..COUNT {
        system.submit("test.wordy", number).await;
    }
    let mut told: BTreeSet<ExecutionId> = BTreeSet::new();
    while (told.len() as u64) < COUNT {
        let next = tokio::time::timeout(Duration::from_secs(20), life.next()).await;
        assert!(told.insert(next.unwrap().execution_id));
    }
    assert_eq!(member.counters.get(Counter::Undispatchable), 0);
    member.stop().await;
}

/// What one life holds of one partition, whoever takes over tells it in parts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_life_that_holds_more_than_a_message_can_name_goes_on_under_the_next_owner() {
    const COUNT: u64 = 2_000;
    let (system, member) = bounded().await;
    let run = Run::Builtin(Builtin::Noop);
    let mut spec = ActionSpec::new("test.many".parse().unwrap(), run);
    spec.pool = "many".to_owned();
    let applied = system.store.apply_action(&spec, PARTITIONS, "test");
    applied.await.unwrap();
    let ever = Duration::from_secs(600);
    let mut life = Life::begin(&system.store, &system.bus, "many", 3_000, ever).await;
    let mut next = async || {
        let next = tokio::time::timeout(Duration::from_secs(20), life.next());
        next.await.expect("it is told nothing more")
    };
    for number in 0..COUNT {
        system.submit("test.many", number).await;
    }
    let mut held = Vec::new();
    while (held.len() as u64) < COUNT {
        held.push(next().await);
    }
    member.stop().await;
    let member = bounded_member(&system, "two").await;
    system.submit("test.many", COUNT).await;
    held.push(next().await);
    for grant in &held {
        life.end(grant).await;
    }
    until("all are completed", async || {
        (system.completed().await == COUNT + 1).then_some(())
    })
    .await;
    assert_eq!(member.counters.get(Counter::Undispatchable), 0);
    member.stop().await;
}

/// What the router adds makes a firing that is as large as it may be larger than a message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_firing_that_cannot_be_handed_on_is_a_dead_letter_and_holds_up_nothing() {
    let (system, member) = bounded().await;
    let refs = system.actions().await;
    let publish = async |body| {
        let message = attune_bus::Outgoing::new(Topic::Enforcements, Uuid::now_v7(), body);
        system.bus.publish(vec![message]).await.unwrap();
    };
    let large = firing(&refs[0], 9, LARGEST);
    assert_eq!(large.len(), LARGEST);
    publish(large).await;
    for action_ref in &refs {
        publish(firing(action_ref, 0, 0)).await;
    }
    system.all_ran(&refs, 1).await;
    until("the large one is a dead letter", async || {
        (system.bus.unsettled(&Topic::DeadLetters) == 1).then_some(())
    })
    .await;
    member.stop().await;
}

/// A submission that cannot even be recorded is kept in the commit that acknowledges it, so dead
/// letters that take nothing lose none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_recorded_is_kept_while_the_dead_letters_take_nothing() {
    const COUNT: usize = 5;
    let (system, member) = bounded().await;
    let room = Room {
        messages: 0,
        bytes: 0,
    };
    system.bus.set_room(&Topic::DeadLetters, room);
    for number in 0..COUNT {
        let body = firing("test.nobody", number as u64, 0);
        let message = attune_bus::Outgoing::new(Topic::Enforcements, Uuid::now_v7(), body);
        system.bus.publish(vec![message]).await.unwrap();
    }
    let filter = DeadLetterFilter::default();
    let letters = until("all are kept", async || {
        let letters = system.store.list_dead_letters(&filter, None, 10).await;
        letters.ok().filter(|letters| letters.len() == COUNT)
    })
    .await;
    for letter in letters {
        assert_eq!(letter.source, "enforcement.created");
        assert!(letter.reason.contains("test.nobody"), "{letter:?}");
        let (_, body) = system
            .store
            .find_dead_letter(letter.id)
            .await
            .unwrap()
            .unwrap();
        let items: Vec<EnforcementCreated> = decode_batch(&body, LARGEST).unwrap();
        assert!(items[0].0.request_id.is_some(), "it goes back as it came");
    }
    assert_eq!(member.counters.get(Counter::LetterKept), COUNT as u64);
    member.stop().await;
}
