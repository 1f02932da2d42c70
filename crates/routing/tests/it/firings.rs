//! Rule firings keep their order, and their way.

use std::collections::BTreeSet;
use std::time::Duration;

use attune_core::{PartitionId, Refusal, RequestId, Submission};
use attune_messages::v1::{EnforcementCreated, OnReject, Submit};
use attune_messages::{Envelope, decode_batch, encode};
use attune_routing::{Arrived, DeliveryId, Firings, Input, Message, Senders, Target};
use chrono::DateTime;
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};
use serde_json::value::to_raw_value;
use uuid::Uuid;

use crate::world::{BOUNDS, MAX_BYTES, NOBODY, Say, World};

const PARTITIONS: u16 = 3;
const RULES: Firings = Firings {
    partitions: PARTITIONS,
    senders: NOBODY,
};

/// A ref in a partition.
fn in_partition(partition: u16) -> String {
    let mut refs = (0..).map(|n| format!("test.a{n}"));
    let fits = |name: &String| PartitionId::of(name, PARTITIONS) == PartitionId(partition);
    refs.find(fits).expect("some ref lies in each partition")
}

fn firing(partition: u16, number: u64) -> Submission {
    let mut submission = Submission::new(in_partition(partition));
    submission.parameters = to_raw_value(&serde_json::json!({"n": number})).expect("JSON");
    submission
}

fn body(submissions: Vec<Submission>) -> Vec<u8> {
    let items: Vec<_> = submissions.into_iter().map(EnforcementCreated).collect();
    encode(Uuid::from_u128(7), DateTime::UNIX_EPOCH, &items)
}

fn submits(message: &Message) -> Vec<Submit> {
    decode_batch(&message.body, MAX_BYTES).expect("an owner can read it")
}

fn number(submission: &Submission) -> u64 {
    let value: serde_json::Value = serde_json::from_str(submission.parameters.get()).expect("JSON");
    value["n"].as_u64().expect("a number")
}

fn arrived(world: &World<Firings>, partition: u16) -> Vec<u64> {
    let kept = world.kept_by(Target::Partition(PartitionId(partition)));
    let items = kept.into_iter().flat_map(submits);
    items.map(|item| number(&item.submission)).collect()
}

/// Each number once, when it was first seen.
fn first_seen(numbers: Vec<u64>) -> Vec<u64> {
    let mut seen = BTreeSet::new();
    numbers.into_iter().filter(|n| seen.insert(*n)).collect()
}

proptest! {
    /// However publishes end, what is first seen of a partition is in the order of arrival.
    #[test]
    fn order_holds_within_a_partition(
        events in prop::collection::vec((0..PARTITIONS, 0..5_u8, any::<bool>()), 1..120),
    ) {
        let mut world = World::new(RULES, BOUNDS);
        let mut sent = vec![Vec::new(); usize::from(PARTITIONS)];
        for (n, (partition, what, flag)) in (0..).zip(events) {
            match what {
                0 | 1 => if world.deliver(body(vec![firing(partition, n)])).is_some() {
                    sent[usize::from(partition)].push(n);
                },
                2 => drop(world.answer(&Say::Unconfirmed(flag))),
                3 => {
                    let target = Target::Partition(PartitionId(partition));
                    world.answer(&Say::Refuse(target, flag, Refusal::Full));
                }
                _ => world.answer_all(&Say::Confirm),
            }
            if flag {
                world.pass(Duration::from_millis(100));
            }
        }
        for _ in 0..50 {
            world.pass(Duration::from_secs(2));
            world.answer_all(&Say::Confirm);
        }
        prop_assert!(world.open.is_empty());
        for (partition, sent) in (0..).zip(sent) {
            prop_assert_eq!(first_seen(arrived(&world, partition)), sent);
        }
    }
}

/// A partition that takes nothing for long makes room for the others, and what was meant for it
/// can be put back under the same request id.
#[test]
fn a_partition_that_takes_nothing_for_long_gives_way_to_the_others() {
    let mut world = World::new(RULES, BOUNDS);
    let full = Target::Partition(PartitionId(1));
    let refuse = Say::Refuse(full, false, Refusal::Full);
    let mut count = 0;
    while world.deliver(body(vec![firing(1, count)])).is_some() {
        world.answer_all(&refuse);
        count += 1;
    }
    for _ in 0..10 {
        world.pass(Duration::from_secs(2));
        world.answer_all(&refuse);
    }
    assert!(!world.relay.wants_more(), "it is patient for half a minute");
    assert!(world.kept.is_empty());
    for _ in 0..10 {
        world.pass(Duration::from_secs(2));
        world.answer_all(&refuse);
    }
    world
        .deliver(body(vec![firing(2, 99)]))
        .expect("there is room");
    world.answer_all(&refuse);
    assert_eq!(arrived(&world, 2), [99]);
    let letters = world.kept_by(Target::Letters);
    let items = letters.iter().flat_map(|letter| {
        let reason = letter.reason.as_deref().unwrap_or_default();
        assert!(reason.contains("partition 1 has taken nothing"), "{reason}");
        decode_batch::<EnforcementCreated>(&letter.body, MAX_BYTES).expect("it can be put back")
    });
    let items: Vec<Submission> = items.map(|item| item.0).collect();
    let id = Some(RequestId(Uuid::from_u128(7)));
    assert!(items.iter().all(|item| item.request_id == id));
    let numbers: Vec<u64> = items.iter().map(number).collect();
    assert_eq!(numbers, (0..count).collect::<Vec<_>>());
}

/// What can never be carried becomes a dead letter, and those behind it go on.
#[test]
fn what_the_bus_never_carries_is_a_dead_letter() {
    let mut world = World::new(RULES, BOUNDS);
    let refuse = Say::Refuse(
        Target::Partition(PartitionId(1)),
        false,
        Refusal::Invalid("no".to_owned()),
    );
    world.deliver(body(vec![firing(1, 1), firing(1, 2)]));
    world.answer(&refuse);
    world.deliver(body(vec![firing(1, 3)]));
    world.answer_all(&Say::Confirm);
    assert!(world.open.is_empty());
    assert_eq!(arrived(&world, 1), [3]);
    assert_eq!((world.buried, world.kept_by(Target::Letters).len()), (2, 2));
}

/// A message that is as large as it may be, and larger when it is routed.
#[test]
fn what_grows_beyond_a_message_is_a_dead_letter_as_it_came() {
    let mut world = World::new(RULES, BOUNDS);
    let padded = |pad: usize| {
        let mut submission = firing(0, 1);
        submission.parameters =
            to_raw_value(&serde_json::json!({"pad": "x".repeat(pad)})).expect("JSON");
        body(vec![submission])
    };
    let large = padded(MAX_BYTES - padded(0).len());
    assert_eq!(large.len(), MAX_BYTES);
    world.deliver(large.clone());
    world.answer_all(&Say::Confirm);
    let letters = world.kept_by(Target::Letters);
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].body, large);
    assert_eq!(letters[0].headers.len(), 1);
    let reason = letters[0].reason.as_deref().unwrap_or_default();
    assert!(reason.contains("make its parameters smaller"), "{reason}");
}

/// Each item of a message stands for itself, under an id that follows from the message's.
#[test]
fn items_stand_for_themselves() {
    let mut world = World::new(RULES, BOUNDS);
    let mut deep = firing(1, 2);
    deep.group = Some("a\0b".to_owned());
    world.deliver(body(vec![firing(1, 1), deep, firing(1, 3)]));
    world.answer_all(&Say::Confirm);
    let kept = world.kept_by(Target::Partition(PartitionId(1)));
    let items: Vec<Submit> = kept.into_iter().flat_map(submits).collect();
    let message = RequestId(Uuid::from_u128(7));
    let ids: Vec<_> = items
        .iter()
        .map(|item| item.submission.request_id)
        .collect();
    assert_eq!(ids, [Some(message), Some(message.of_item(2))]);
    assert!(items.iter().all(|item| item.on_reject == OnReject::Record));
    let letters = world.kept_by(Target::Letters);
    let letter =
        decode_batch::<EnforcementCreated>(&letters[0].body, MAX_BYTES).expect("as it came");
    assert_eq!(letter[0].0.request_id, Some(message.of_item(1)));
}

/// A message can have hundreds of thousands of items: those that cannot be used are few letters, and all there.
#[test]
fn a_message_of_many_unusable_items_is_few_letters() {
    const MANY: u64 = 50;
    let mut world = World::new(RULES, BOUNDS);
    let unusable = (0..MANY).map(|n| {
        let mut deep = firing(1, n);
        deep.group = Some("a\0b".to_owned());
        deep
    });
    world.deliver(body(unusable.chain([firing(1, MANY)]).collect()));
    while !world.open.is_empty() {
        assert!(world.answer(&Say::Confirm), "something is still on its way");
    }
    assert_eq!(arrived(&world, 1), [MANY]);
    let letters = world.kept_by(Target::Letters);
    let last = letters.last().expect("there are letters");
    assert!(letters.len() > 16, "the first have one each");
    assert!(letters.len() < 20, "{}", letters.len());
    assert!(letters.iter().all(|letter| letter.body.len() <= MAX_BYTES));
    let reason = last.reason.as_deref().expect("it says why");
    assert!(
        reason.contains("more items of its message that cannot be used"),
        "{reason}"
    );
    let items = letters.iter().flat_map(|letter| {
        decode_batch::<EnforcementCreated>(&letter.body, MAX_BYTES).expect("as it came")
    });
    let numbers: Vec<u64> = items.map(|item| number(&item.0)).collect();
    assert_eq!(numbers, (0..MANY).collect::<Vec<_>>());
}

fn from(user: Option<&str>, number: u64, named: Option<&str>) -> Arrived {
    let mut asked = firing(1, number);
    asked.requested_by = named.map(str::to_owned);
    Arrived {
        id: DeliveryId(100 + number),
        body: body(vec![asked]).into(),
        message_id: None,
        reply_to: None,
        user: user.map(str::to_owned),
        headers: Vec::new(),
    }
}

/// Where the broker vouches for users each asks for itself, and some for others.
#[test]
fn a_client_names_nobody_but_itself() {
    let senders = Senders {
        required: true,
        own: Some("attune-executor".to_owned()),
        impersonators: ["rules".to_owned()].into(),
        ..Senders::default()
    };
    let rules = Firings {
        partitions: PARTITIONS,
        senders,
    };
    let mut world = World::new(rules, BOUNDS);
    let asks = [
        (Some("shop"), None),
        (Some("shop"), Some("shop")),
        (Some("shop"), Some("alice")),
        (Some("rules"), Some("alice")),
        (Some("rules"), None),
        (Some("attune-executor"), Some("alice")),
        (None, Some("shop")),
    ];
    let asks = (0..).zip(asks);
    let asks = asks.map(|(number, (user, named))| from(user, number, named));
    world.open.extend(100..107);
    world.step(Input::Delivered(asks.collect()));
    world.answer_all(&Say::Confirm);
    let kept = world.kept_by(Target::Partition(PartitionId(1)));
    let kept = kept.into_iter().flat_map(submits);
    let kept: Vec<(u64, Option<String>)> = kept
        .map(|it| (number(&it.submission), it.submission.requested_by))
        .collect();
    let by = |name: &str| Some(name.to_owned());
    let expected = [
        (0, by("shop")),
        (1, by("shop")),
        (3, by("alice")),
        (4, None),
        (5, by("alice")),
    ];
    assert_eq!(kept, expected);
    let letters = world.kept_by(Target::Letters);
    let reasons: Vec<&str> = letters
        .iter()
        .filter_map(|it| it.reason.as_deref())
        .collect();
    assert_eq!(reasons.len(), 2);
    for said in ["broker.impersonators", "broker.require_user_id"] {
        assert!(
            reasons.iter().any(|reason| reason.contains(said)),
            "{reasons:?}"
        );
    }
    assert!(world.open.is_empty());
}

fn trace(number: u128) -> String {
    format!("00-{number:032x}-00f067aa0ba902b7-01")
}

/// Of which traces firings are parts goes with them, packed as they are with others that are parts of none; an own one
/// counts before that of the message.
#[test]
fn a_firing_keeps_its_trace() {
    let mut world = World::new(RULES, BOUNDS);
    let ids = (1..).map(Uuid::from_u128);
    let mut ids = ids.take(3);
    let mut deliver = |headers: Vec<(String, String)>, body: Vec<u8>| {
        let id = ids.next().expect("three are enough");
        world
            .deliver_with(id, body, headers)
            .expect("it wants more");
    };
    let header = |text: String| vec![("traceparent".to_owned(), text)];
    // While this one is on its way the others gather.
    deliver(Vec::new(), body(vec![firing(1, 0)]));
    let mut own: serde_json::Value =
        serde_json::from_slice(&body(vec![firing(1, 1), firing(1, 2)])).expect("JSON");
    own["traces"] = serde_json::json!({"1": trace(2), "9": trace(9)});
    deliver(header(trace(1)), own.to_string().into_bytes());
    deliver(header("00-malformed".to_owned()), body(vec![firing(1, 3)]));
    world.answer_all(&Say::Confirm);
    let kept = world.kept_by(Target::Partition(PartitionId(1)));
    assert_eq!(kept.len(), 2);
    let mut found = Vec::new();
    for message in kept {
        let envelope = Envelope::parse(&message.body, MAX_BYTES).expect("an owner can read it");
        let traces = envelope.traces();
        for (place, submit) in submits(message).iter().enumerate() {
            let trace = traces.get(place).map(|trace| trace.to_string());
            found.push((number(&submit.submission), trace));
        }
    }
    let expected = [
        (0, None),
        (1, Some(trace(1))),
        (2, Some(trace(2))),
        (3, None),
    ];
    assert_eq!(found, expected);
}

/// A firing that just fits goes without its trace, and one that does not fit when it is routed is refused as it is without.
#[test]
fn a_trace_makes_no_firing_too_large() {
    let mut carried = 0;
    let around = body(vec![firing(1, 0)]).len() + r#","text":"\"\"""#.len() + 2;
    let mut outcomes = BTreeSet::new();
    for bytes in MAX_BYTES - around - 200..MAX_BYTES - around {
        let both = [None, Some(trace(1))].map(|trace| {
            let mut world = World::new(RULES, BOUNDS);
            let mut large = firing(1, 0);
            let text = format!("\"{}\"", "x".repeat(bytes));
            large.parameters =
                to_raw_value(&serde_json::json!({"n": 0, "text": text})).expect("JSON");
            let body = body(vec![large]);
            assert!(body.len() <= MAX_BYTES);
            let headers = trace.map(|text| ("traceparent".to_owned(), text));
            world.deliver_with(Uuid::from_u128(1), body, headers.into_iter().collect());
            world.answer_all(&Say::Confirm);
            let kept = world.kept_by(Target::Partition(PartitionId(1)));
            assert!(kept.iter().all(|message| message.body.len() <= MAX_BYTES));
            let traced = kept.iter().filter(|message| {
                let read = Envelope::parse(&message.body, MAX_BYTES).expect("an owner can read it");
                !read.traces().is_empty()
            });
            carried += traced.count();
            (kept.len(), world.kept_by(Target::Letters).len())
        });
        assert_eq!(both[0], both[1], "{bytes}");
        outcomes.insert(both[0]);
    }
    assert_eq!(outcomes.len(), 2, "some fit, and some do not");
    assert!(carried > 0, "with room it goes along");
}

/// Only items with one asker travel together.
#[test]
fn askers_are_told_apart() {
    let mut world = World::new(RULES, BOUNDS);
    let addresses = [Some("mine"), Some("mine"), None];
    let arrived = (0..).zip(addresses).map(|(n, reply_to)| Arrived {
        id: DeliveryId(100 + n),
        body: body(vec![firing(1, n)]).into(),
        message_id: None,
        reply_to: reply_to.map(str::to_owned),
        user: None,
        headers: Vec::new(),
    });
    world.open.extend(100..103);
    world.step(Input::Delivered(arrived.collect()));
    world.answer_all(&Say::Confirm);
    let kept = world.kept_by(Target::Partition(PartitionId(1)));
    let packs: Vec<_> = kept
        .iter()
        .map(|message| (message.reply_to.as_deref(), submits(message).len()))
        .collect();
    assert_eq!(packs, [(Some("mine"), 2), (None, 1)]);
    assert!(world.open.is_empty());
}

/// A broker closes the channel of whoever leaves a delivery unacknowledged for long, and gives back
/// everything else that came over the connection.
#[test]
fn one_of_a_newer_version_goes_back_after_a_while() {
    const NEWER: &str = r#"{"message_id":"00000000-0000-0000-0000-000000000000","message_type":"enforcement.created","version":2,"timestamp":"2026-01-02T03:04:05Z","payload":{}}"#;
    let mut world = World::new(RULES, BOUNDS);
    world.deliver(NEWER).expect("there is room");
    world.answer_all(&Say::Confirm);
    assert_eq!(world.open.len(), 1);
    world.pass(Duration::from_secs(61));
    world.answer_all(&Say::Confirm);
    assert!(world.open.is_empty(), "{:?}", world.open);
    assert_eq!(world.kept_by(Target::Back).len(), 1);
}
