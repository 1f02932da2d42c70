//! Completions in a random world.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use attune_core::{
    ActionId, Attempt, Epoch, ExecutionId, PartitionId, Refusal, Seq, Status, WorkerId,
};
use attune_messages::v1::{Completion, ExecutionCompleted, SlotRelease};
use attune_messages::{TIMES_BACK, decode_batch, encode};
use attune_routing::{Bounds, Completions, Message, Target};
use chrono::DateTime;
use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};
use uuid::Uuid;

use crate::world::{BOUNDS, MAX_BYTES, NOBODY, PARTITIONS, Say, World, header};

/// The relay is told of one partition less: what is for that one can go nowhere.
const RULES: Completions = Completions {
    partitions: PARTITIONS - 1,
    senders: NOBODY,
};
const NEWER: &str = r#"{"message_id":"00000000-0000-0000-0000-000000000000","message_type":"execution.completed","version":2,"timestamp":"2026-01-02T03:04:05Z","payload":{}}"#;

fn completion(partition: u16, n: u32) -> Completion {
    Completion {
        execution_id: ExecutionId::new(PartitionId(partition), Seq::new(Epoch(1), n)),
        attempt: Attempt(1),
        action_id: ActionId(1),
        status: Status::Succeeded,
        result: None,
        error: None,
        code: None,
        exit_code: Some(0),
        stdout: None,
        stderr: None,
        partition: None,
        worker: Some(WorkerId(Uuid::nil())),
        broker_user: None,
        started_at: None,
        finished_at: None,
    }
}

fn message(completions: &[Completion]) -> String {
    let items: Vec<_> = completions
        .iter()
        .cloned()
        .map(ExecutionCompleted)
        .collect();
    let body = encode(Uuid::nil(), DateTime::UNIX_EPOCH, &items);
    String::from_utf8(body).expect("JSON is text")
}

/// The numbers of the completions in a message to an owner, or back to the end of the topic.
fn numbers(message: &Message) -> Vec<u32> {
    let body = &message.body;
    let items = decode_batch::<SlotRelease>(body, MAX_BYTES)
        .map(|items| items.into_iter().map(|item| item.0).collect())
        .or_else(|_| {
            decode_batch::<ExecutionCompleted>(body, MAX_BYTES)
                .map(|items| items.into_iter().map(|item| item.0).collect::<Vec<_>>())
        });
    let number = |item: &Completion| (item.execution_id.seq().0 & 0xffff_ffff) as u32;
    items.iter().flatten().map(number).collect()
}

#[derive(Debug, Clone)]
enum Event {
    /// A message with completions for these partitions, and one item that is none if so.
    Report(Vec<u16>, bool),
    Newer,
    Garbage,
    Answer(Say),
    Pass(u16),
}

/// What each delivery must lead to: the numbers of its completions.
type Expected = BTreeMap<u64, BTreeSet<u32>>;

fn run(events: &[Event]) -> (World<Completions>, Expected) {
    let mut world = World::new(RULES, BOUNDS);
    let (mut expected, mut next) = (Expected::new(), 0);
    let (mut kept, mut seen) = (BTreeSet::new(), 0);
    for event in events {
        match event {
            Event::Report(partitions, broken) => {
                let first = next;
                next += u32::try_from(partitions.len()).expect("there are few");
                let items = partitions.iter().zip(first..);
                let items: Vec<_> = items
                    .map(|(partition, n)| completion(*partition, n))
                    .collect();
                let mut body = message(&items);
                if *broken && items.len() > 1 {
                    body = body.replacen("},{", "},7,{", 1);
                }
                if let Some(tag) = world.deliver(body) {
                    expected.insert(tag, (first..next).collect());
                }
            }
            Event::Newer => drop(world.deliver(NEWER)),
            Event::Garbage => drop(world.deliver("garbage")),
            Event::Answer(say) => drop(world.answer(say)),
            Event::Pass(ms) => world.pass(Duration::from_millis(u64::from(*ms))),
        }
        let new = &world.kept[seen..];
        kept.extend(new.iter().flat_map(|kept| numbers(&kept.message)));
        seen = world.kept.len();
        for tag in &world.acked {
            let expected = expected.get(tag).cloned().unwrap_or_default();
            assert!(expected.is_subset(&kept), "acknowledged and kept nowhere");
        }
    }
    (world, expected)
}

fn target() -> impl Strategy<Value = Target> {
    (0..PARTITIONS + 2).prop_map(|n| match n.checked_sub(PARTITIONS) {
        None => Target::Partition(PartitionId(n)),
        Some(0) => Target::Letters,
        Some(_) => Target::Back,
    })
}

fn event() -> impl Strategy<Value = Event> {
    let partitions = prop::collection::vec(0..PARTITIONS, 1..8);
    let just = proptest::strategy::Just;
    let why = prop::sample::select(vec![
        Refusal::Full,
        Refusal::Full,
        Refusal::Unroutable,
        Refusal::Invalid("as drawn".to_owned()),
    ]);
    prop::strategy::Union::new_weighted(vec![
        (
            6,
            (partitions, any::<bool>())
                .prop_map(|(p, b)| Event::Report(p, b))
                .boxed(),
        ),
        (1, just(Event::Newer).boxed()),
        (1, just(Event::Garbage).boxed()),
        (4, just(Event::Answer(Say::Confirm)).boxed()),
        (
            2,
            any::<bool>()
                .prop_map(|kept| Event::Answer(Say::Unconfirmed(kept)))
                .boxed(),
        ),
        (
            3,
            (target(), any::<bool>(), why)
                .prop_map(|(t, o, why)| Event::Answer(Say::Refuse(t, o, why)))
                .boxed(),
        ),
        (4, (0_u16..3000).prop_map(Event::Pass).boxed()),
    ])
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
    #[test]
    fn what_is_acknowledged_is_safe_and_all_of_it_ends(
        events in prop::collection::vec(event(), 0..120),
    ) {
        let (mut world, _) = run(&events);
        prop_assert_eq!(&world.log, &run(&events).0.log);
        // The bus is well again: everything is done soon.
        for _ in 0..60 {
            world.pass(Duration::from_secs(6));
            world.answer_all(&Say::Confirm);
        }
        prop_assert!(world.relay.is_quiet());
        prop_assert!(world.open.is_empty(), "{:?}", world.open);
        prop_assert_eq!(world.relay.trouble(), None);
    }
}

/// Newer messages, more than the window holds: few of them stay, and the others come through.
#[test]
fn messages_of_a_newer_version_do_not_fill_the_window() {
    let mut world = World::new(RULES, BOUNDS);
    for _ in 0..BOUNDS.window {
        world.deliver(NEWER).expect("there is room");
    }
    assert_eq!(world.deliver(NEWER), None);
    for _ in 0..3 {
        world.pass(Duration::from_millis(1_100));
        world.answer_all(&Say::Confirm);
    }
    assert!(world.open.len() * 4 <= BOUNDS.window, "{:?}", world.open);
    assert_eq!(
        world.kept_by(Target::Back).len() + world.open.len(),
        BOUNDS.window
    );
    assert!(world.kept_by(Target::Letters).is_empty());
    let told = world.relay.trouble().expect("an operator is told");
    assert!(told.contains("of a newer version"), "{told}");
    // Others may know how to read it: in a while nothing of it is kept from them.
    world.pass(Duration::from_secs(6));
    world.answer_all(&Say::Confirm);
    assert!(world.open.is_empty());
    let body = &world.kept_by(Target::Back)[0].body;
    assert_eq!(body, NEWER.as_bytes(), "as it came");
}

/// Somebody sends thousands of them: some wait, and what comes behind them gets past.
#[test]
fn messages_of_a_newer_version_that_are_too_many_are_dead_letters() {
    const MANY: u128 = 1_000;
    let mut world = World::new(RULES, BOUNDS);
    let mut topic: VecDeque<(Uuid, Vec<(String, String)>)> =
        (1..=MANY).map(|n| (Uuid::from_u128(n), vec![])).collect();
    let (mut seen_back, mut passes) = (0, 0);
    while let Some((id, headers)) = topic.pop_front() {
        while world.deliver_with(id, NEWER, headers.clone()).is_none() {
            world.pass(Duration::from_millis(260));
            world.answer_all(&Say::Confirm);
        }
        world.answer_all(&Say::Confirm);
        let back = world.kept_by(Target::Back);
        let again = back[seen_back..]
            .iter()
            .map(|kept| (kept.message_id, kept.headers.clone()));
        topic.extend(again);
        seen_back = back.len();
        passes += 1;
        if passes > 4 * MANY {
            break;
        }
    }
    let letters = world.kept_by(Target::Letters);
    assert_eq!(letters.len() as u128, MANY - 256);
    let reason = letters[0].reason.as_deref().expect("it says why");
    assert!(reason.contains("update the program"), "{reason}");
    // Those that wait go round.
    assert!(seen_back > 1_000, "{seen_back}");
}

/// Put back and given back by the broker: two of the same. One of them stays, unacknowledged.
#[test]
fn a_message_of_a_newer_version_does_not_multiply() {
    let mut world = World::new(RULES, BOUNDS);
    let first = world.deliver_as(Uuid::from_u128(7), NEWER);
    let other = world.deliver_as(Uuid::from_u128(8), NEWER);
    let again = world.deliver_as(Uuid::from_u128(7), NEWER);
    world.answer_all(&Say::Confirm);
    let open: Vec<u64> = world.open.iter().copied().collect();
    let stays: Vec<u64> = [other, again].into_iter().flatten().collect();
    assert_eq!(open, stays, "not {first:?}");
    world.pass(Duration::from_secs(6));
    world.answer_all(&Say::Confirm);
    assert!(world.open.is_empty());
    assert_eq!(world.kept_by(Target::Back).len(), 2);
}

/// A publish that was not answered is repeated, and a lost acknowledgement brings the message again: what
/// went back less often than another copy is acknowledged and goes nowhere, also long after.
#[test]
fn copies_of_a_newer_message_that_are_far_apart_become_one() {
    let id = Uuid::from_u128(7);
    let mut world = World::new(RULES, BOUNDS);
    let back = |world: &mut World<Completions>, times: &str| {
        let headers = vec![header("x-own", "yes"), header(TIMES_BACK, times)];
        world.deliver_with(id, NEWER, headers);
        world.answer_all(&Say::Confirm);
    };
    world.deliver_as(id, NEWER);
    world.pass(Duration::from_secs(6));
    assert!(world.answer(&Say::Unconfirmed(true)));
    world.pass(Duration::from_secs(6));
    world.answer_all(&Say::Confirm);
    let kept: Vec<_> = world.kept_by(Target::Back);
    let counts: Vec<_> = kept.iter().map(|kept| kept.headers.clone()).collect();
    let once = vec![header("x-own", "yes"), header(TIMES_BACK, "1")];
    assert_eq!(
        counts,
        [once.clone(), once],
        "the same count when it is repeated"
    );
    assert!(world.open.is_empty());

    // It is given back as well: it came before both.
    world.deliver_as(id, NEWER);
    assert!(world.open.is_empty(), "acknowledged");
    back(&mut world, "1");
    assert_eq!(world.open.len(), 1);
    world.pass(Duration::from_secs(6));
    world.answer_all(&Say::Confirm);
    assert_eq!(world.kept_by(Target::Back).len(), 3);
    back(&mut world, "1");
    assert!(world.open.is_empty(), "the other of the two");
    assert_eq!(world.kept_by(Target::Back).len(), 3);
    back(&mut world, "2");
    assert_eq!(world.open.len(), 1, "the last one stays");
}

/// It was put back while the broker gave it back as well: what is not needed is acknowledged when that is
/// found, and not with whatever happens next.
#[test]
fn a_copy_that_is_outdated_while_it_waits_is_acknowledged_at_once() {
    let mut world = World::new(RULES, BOUNDS);
    let id = Uuid::from_u128(7);
    world.deliver_as(id, NEWER);
    world.pass(Duration::from_secs(6));
    let again = world.deliver_as(id, NEWER).expect("there is room");
    world.answer_all(&Say::Confirm);
    assert!(world.open.contains(&again));
    world.pass(Duration::from_secs(6));
    assert!(world.acked.contains(&again), "{:?}", world.open);
    assert!(world.calls.is_empty(), "it goes nowhere");
}

/// Senders may give one id to different messages, and the bus names by it what it refuses.
#[test]
fn messages_with_one_id_are_refused_each_for_itself() {
    let mut world = World::new(RULES, BOUNDS);
    let id = Uuid::from_u128(7);
    let other = NEWER.replace("02T", "03T");
    world.deliver_as(id, NEWER);
    world.deliver_as(id, other.clone());
    let full = Say::Refuse(Target::Back, false, Refusal::Full);
    for _ in 0..4 {
        world.pass(Duration::from_secs(6));
        world.answer(&full);
        assert_eq!(world.open.len(), 2, "neither is kept");
    }
    for _ in 0..3 {
        world.pass(Duration::from_secs(6));
        world.answer_all(&Say::Confirm);
    }
    assert!(world.open.is_empty());
    let kept = world.kept_by(Target::Back).into_iter();
    let kept: BTreeSet<_> = kept.map(|message| message.body.to_vec()).collect();
    assert_eq!(kept, BTreeSet::from([NEWER.into(), other.into_bytes()]));
}

/// What no bus carries is left out, also when it stands in a header of ours.
#[test]
fn garbage_with_headers_that_nobody_carries_is_buried_without_them() {
    let mut world = World::new(RULES, BOUNDS);
    let headers = vec![header(TIMES_BACK, &"0".repeat(70_000))];
    world.deliver_with(Uuid::from_u128(7), "garbage", headers);
    let invalid = Refusal::Invalid("the headers are too long".to_owned());
    assert!(world.answer(&Say::Refuse(Target::Letters, false, invalid)));
    world.answer_all(&Say::Confirm);
    assert!(world.open.is_empty());
    assert!(world.kept_by(Target::Letters)[0].headers.is_empty());
}

/// More than a window: two copies of one message are seldom there at the same time.
const UNREAD: usize = 3 * BOUNDS.window;

/// A topic of messages that no relay can read, over connections that are lost now and then.
struct Unread {
    world: World<Completions>,
    topic: VecDeque<(Uuid, Vec<(String, String)>)>,
    /// Received over the connection there is.
    received: BTreeMap<u64, (Uuid, Vec<(String, String)>)>,
    seen: usize,
}

impl Unread {
    fn new() -> Self {
        Self {
            world: World::new(RULES, BOUNDS),
            topic: (0..UNREAD as u128)
                .map(|id| (Uuid::from_u128(id), vec![]))
                .collect(),
            received: BTreeMap::new(),
            seen: 0,
        }
    }

    /// What there is goes round once.
    fn go_round(&mut self, say: &Say, lost: bool) {
        for (id, headers) in std::mem::take(&mut self.topic) {
            let tag = self.world.deliver_with(id, NEWER, headers.clone());
            match tag {
                Some(tag) => drop(self.received.insert(tag, (id, headers))),
                None => self.topic.push_back((id, headers)),
            }
        }
        self.world.pass(Duration::from_secs(6));
        self.world.answer(say);
        self.world.answer_all(&Say::Confirm);
        let acked = |tag: &u64| self.world.acked.contains(tag);
        if lost {
            // What is acknowledged from now on comes too late.
            for (_, message) in std::mem::take(&mut self.received).into_iter().rev() {
                self.topic.push_front(message);
            }
        } else {
            self.received.retain(|tag, _| !acked(tag));
        }
        let back: Vec<_> = self.world.kept_by(Target::Back)[self.seen..]
            .iter()
            .map(|message| (message.message_id, message.headers.clone()))
            .collect();
        self.seen += back.len();
        self.topic.extend(back);
    }

    fn messages(&self) -> Vec<Uuid> {
        let received = self.received.values();
        let all = self.topic.iter().chain(received);
        all.map(|(id, _)| *id).collect()
    }
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// Whatever is not answered or lost, each message is there, and after a few quiet rounds once.
    #[test]
    fn what_goes_round_for_long_does_not_multiply(
        fates in prop::collection::vec((0..4_u8, 0..4_u8), 0..60),
    ) {
        let mut unread = Unread::new();
        for (answer, connection) in fates {
            let say = if answer == 0 { Say::Unconfirmed(true) } else { Say::Confirm };
            unread.go_round(&say, connection == 0);
            let there: BTreeSet<_> = unread.messages().into_iter().collect();
            prop_assert_eq!(there.len(), UNREAD);
        }
        for _ in 0..40 {
            unread.go_round(&Say::Confirm, false);
        }
        prop_assert_eq!(unread.messages().len(), UNREAD);
    }
}

/// Bytes bound it as well as messages.
#[test]
fn large_messages_fill_the_window_by_their_bytes() {
    let few = Bounds {
        window_bytes: 3 * MAX_BYTES,
        ..BOUNDS
    };
    let mut world = World::new(RULES, few);
    let large = Completion {
        stdout: Some("x".repeat(MAX_BYTES - 600)),
        ..completion(0, 1)
    };
    let mut taken = 0;
    while world
        .deliver(message(std::slice::from_ref(&large)))
        .is_some()
    {
        taken += 1;
    }
    assert_eq!(taken, 4);
    world.answer_all(&Say::Confirm);
    assert!(world.open.is_empty() && world.relay.wants_more());
}

/// A completion frees a slot: it does not wait until those before it are confirmed, but the number of
/// publishes that are on their way is bounded. One is enough to see whether a full queue takes any.
#[test]
fn completions_go_beside_those_that_are_not_confirmed_yet() {
    let mut world = World::new(RULES, BOUNDS);
    let mut n = 0;
    let mut deliver = |world: &mut World<Completions>| {
        n += 1;
        world.deliver(message(&[completion(1, n)])).expect("room");
    };
    for on_the_way in [1, 2, 3, 4, 4] {
        deliver(&mut world);
        assert_eq!(world.calls.len(), on_the_way);
    }
    let target = Target::Partition(PartitionId(1));
    let refuse = Say::Refuse(target, false, Refusal::Full);
    for left in [3, 2, 1, 0] {
        assert!(world.answer(&refuse));
        assert_eq!(world.calls.len(), left);
    }
    // They failed together: the pause is that of one failure.
    world.pass(Duration::from_millis(50));
    assert_eq!(world.calls.len(), 1);
    deliver(&mut world);
    assert_eq!(world.calls.len(), 1);
    world.answer_all(&Say::Confirm);
    assert!(world.open.is_empty());
}

/// A refusal costs its own target a pause, and nobody else anything.
#[test]
fn what_is_refused_waits_and_holds_up_no_other() {
    let mut world = World::new(RULES, BOUNDS);
    let full = Target::Partition(PartitionId(1));
    let refuse = Say::Refuse(full, false, Refusal::Full);
    world.deliver(message(&[completion(1, 1), completion(2, 2)]));
    world.answer_all(&refuse);
    for n in 3..10 {
        world.deliver(message(&[completion(2, n)]));
        world.answer_all(&refuse);
    }
    assert_eq!(world.kept_by(Target::Partition(PartitionId(2))).len(), 8);
    assert_eq!(world.open.len(), 1);
    let wake = world.relay.wake_at().expect("it tries again");
    assert!(wake > world.now, "it does not try again at once");
    world.pass(wake - world.now);
    world.answer_all(&Say::Confirm);
    assert!(world.open.is_empty());
}

/// Dead letters that take nothing: what belongs there goes to the end of its topic as it came,
/// and the window is free again.
#[test]
fn full_dead_letters_lose_nothing_and_hold_up_nothing() {
    let mut world = World::new(RULES, BOUNDS);
    let refuse = Say::Refuse(Target::Letters, false, Refusal::Full);
    while world.deliver("garbage").is_some() {
        world.answer_all(&refuse);
    }
    for _ in 0..10 {
        world.pass(Duration::from_secs(2));
        world.answer_all(&refuse);
    }
    assert!(world.open.is_empty(), "{:?}", world.relay.trouble());
    let back = world.kept_by(Target::Back);
    assert_eq!(back.len(), BOUNDS.window);
    assert!(back.iter().all(|message| message.body == "garbage"));
    assert!(world.kept_by(Target::Letters).is_empty());
    assert_eq!(world.buried, 0);
}
