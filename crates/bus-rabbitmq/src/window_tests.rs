use std::collections::{HashSet, VecDeque};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::*;

fn refused(message_id: Uuid, why: Refusal) -> Refused {
    Refused { message_id, why }
}

fn sent(id: Uuid, key: &str, bytes: usize) -> Sent {
    Sent {
        id,
        to: Route {
            exchange: "exchange".into(),
            key: key.into(),
        },
        bytes,
        is_hint: false,
        at: Instant::now(),
    }
}

fn push(window: &mut Window<usize>, call: CallId) -> Uuid {
    let id = Uuid::now_v7();
    window.push(call, sent(id, "key", 1));
    id
}

fn window(calls: &[usize]) -> (Window<usize>, Vec<Uuid>) {
    let mut window = Window::new();
    let mut ids = Vec::new();
    for (owner, &size) in calls.iter().enumerate() {
        let call = window.begin(owner);
        ids.extend((0..size).map(|_| push(&mut window, call)));
        window.finish(call);
    }
    (window, ids)
}

fn key() -> Option<ShortString> {
    Some("key".into())
}

#[test]
fn a_call_is_settled_whatever_becomes_of_those_before_it() {
    let (mut window, ids) = window(&[2, 1, 1]);
    assert_eq!(window.confirmed(2, Verdict::Acked, true), key());
    assert_eq!(window.settled(), [(1, vec![])]);
    assert_eq!(window.confirmed(2, Verdict::Acked, true), None, "once");
    assert_eq!(window.confirmed(3, Verdict::Nacked, true), key());
    let full = vec![refused(ids[3], Refusal::Full)];
    assert_eq!(window.settled(), [(2, full)]);
    window.confirmed(1, Verdict::Acked, true);
    assert_eq!(window.settled(), []);
    assert!(window.oldest().is_some());
    window.confirmed(0, Verdict::Acked, true);
    assert_eq!(window.settled(), [(0, vec![])]);
    assert!(window.is_empty() && window.oldest().is_none());
}

/// The confirm took the return of another message along, so its own may still be waiting.
#[test]
fn a_confirm_with_a_return_waits_for_a_bare_one_or_for_all_before() {
    let (mut window, ids) = window(&[1, 1, 1, 1]);
    window.confirmed(2, Verdict::Acked, false);
    assert!(window.returned(ids[1], "key"));
    assert!(!window.returned(ids[1], "another key"));
    assert!(!window.returned(Uuid::now_v7(), "key"));
    assert_eq!(window.settled(), []);
    // A bare one that was completed at about the same time could have come before it; the next
    // one did not.
    window.confirmed(3, Verdict::Acked, true);
    assert_eq!(window.settled(), [(2, vec![]), (3, vec![])]);
    window.confirmed(1, Verdict::Acked, false);
    assert!(window.returned(ids[0], "key"));
    let lost = |place: usize| vec![refused(ids[place], Refusal::Unroutable)];
    assert_eq!(window.settled(), [(1, lost(1))]);
    window.confirmed(0, Verdict::Acked, true);
    assert_eq!(window.settled(), [(0, lost(0))]);

    let (mut window, ids) = self::window(&[1, 1]);
    window.confirmed(1, Verdict::Acked, false);
    assert!(window.returned(ids[0], "key"));
    assert_eq!(window.settled(), []);
    window.confirmed(0, Verdict::Acked, false);
    assert!(window.returned(ids[1], "key"));
    let settled: Vec<usize> = window
        .settled()
        .into_iter()
        .map(|(owner, _)| owner)
        .collect();
    assert_eq!(settled, [0, 1]);
}

#[test]
fn a_call_that_is_still_being_written_is_not_settled() {
    let mut window = Window::new();
    let call = window.begin(7);
    push(&mut window, call);
    window.confirmed(0, Verdict::Acked, true);
    assert_eq!(window.settled(), []);
    push(&mut window, call);
    window.finish(call);
    assert_eq!(window.settled(), []);
    window.confirmed(1, Verdict::Acked, true);
    assert_eq!(window.settled(), [(7, vec![])]);
}

#[test]
fn the_same_message_twice_in_flight_is_refused_twice() {
    let mut window = Window::new();
    let id = Uuid::now_v7();
    for owner in ["first", "again"] {
        let call = window.begin(owner);
        let sequence = window.push(call, sent(id, "key", 1));
        window.finish(call);
        window.confirmed(sequence, Verdict::Acked, false);
    }
    assert!(window.returned(id, "key"));
    let both = ["first", "again"].map(|call| (call, vec![refused(id, Refusal::Unroutable)]));
    assert_eq!(window.settled(), both);
}

/// lapin's side: returns queue up, and each confirm takes the oldest along.
#[derive(Default)]
struct Lapin {
    waiting: VecDeque<Uuid>,
    /// Completed and not yet seen by the publisher.
    completed: Vec<(u64, Option<Uuid>)>,
}

impl Lapin {
    fn complete(&mut self, sequence: u64) {
        self.completed.push((sequence, self.waiting.pop_front()));
    }

    /// The publisher sees all that is completed, in any order, before it settles.
    fn report(&mut self, window: &mut Window<usize>, random: &mut StdRng) -> bool {
        self.completed.shuffle(random);
        let mut all_known = true;
        for (sequence, returned) in self.completed.drain(..) {
            window.confirmed(sequence, Verdict::Acked, returned.is_none());
            if let Some(id) = returned {
                all_known &= window.returned(id, "key");
            }
        }
        all_known
    }
}

/// A broker that returns in order and confirms routable messages whenever it likes, some of them
/// never, and a publisher that sees confirms in any order, in bunches: what is refused is exactly
/// what was unroutable, and who has no message among those that are never confirmed is answered.
#[test]
fn misattributed_returns_never_hide_a_refusal_and_never_cause_one() {
    for seed in 0..2_000 {
        let mut random = StdRng::seed_from_u64(seed);
        let sizes: Vec<usize> = (0..30).map(|_| random.random_range(1..=8)).collect();
        let (mut window, ids) = window(&sizes);
        let mut drawn = |chance: f64| -> HashSet<usize> {
            let all = 0..ids.len();
            all.filter(|_| random.random_bool(chance)).collect()
        };
        let (unroutable, mut stuck) = (drawn(0.15), drawn(0.03));
        stuck.retain(|place| !unroutable.contains(place));
        let mut lapin = Lapin::default();
        let (mut confirmable, mut settled) = (Vec::new(), Vec::new());
        let mut lost = HashSet::new();
        let mut sent = 0;
        while sent < ids.len() || !confirmable.is_empty() {
            // The broker takes some messages, in order …
            let until = (sent + random.random_range(0..=6)).min(ids.len());
            for (place, id) in ids.iter().enumerate().take(until).skip(sent) {
                if unroutable.contains(&place) {
                    lapin.waiting.push_back(*id);
                }
                if !stuck.contains(&place) {
                    confirmable.push(place as u64);
                }
            }
            sent = until;
            // … and confirms some of those it took, in any order.
            confirmable.shuffle(&mut random);
            for _ in 0..random.random_range(0..=confirmable.len()) {
                lapin.complete(confirmable.pop().unwrap());
            }
            assert!(
                lapin.report(&mut window, &mut random),
                "seed {seed}: not settled too early"
            );
            settled.extend(window.settled());
        }
        // Whatever is published next is confirmed bare.
        assert!(lapin.waiting.is_empty(), "seed {seed}");
        let call = window.begin(sizes.len());
        push(&mut window, call);
        window.finish(call);
        lapin.complete(ids.len() as u64);
        assert!(lapin.report(&mut window, &mut random));
        settled.extend(window.settled());
        let held = held_up(&sizes, &stuck);
        assert_eq!(settled.len(), sizes.len() + 1 - held.len(), "seed {seed}");
        for place in stuck {
            lapin.complete(place as u64);
        }
        assert!(lapin.report(&mut window, &mut random));
        settled.extend(window.settled());
        assert!(window.is_empty() && window.slots.is_empty(), "seed {seed}");
        for (_, refused) in settled {
            lost.extend(refused.into_iter().map(|refused| refused.message_id));
        }
        let expected: HashSet<Uuid> = unroutable.iter().map(|place| ids[*place]).collect();
        assert_eq!(lost, expected, "seed {seed}");
    }
}

/// The calls that have one of these messages.
fn held_up(sizes: &[usize], stuck: &HashSet<usize>) -> Vec<usize> {
    let mut first = 0;
    let mut held = Vec::new();
    for (call, size) in sizes.iter().enumerate() {
        if (first..first + size).any(|place| stuck.contains(&place)) {
            held.push(call);
        }
        first += size;
    }
    held
}

/// Of those that were on their way the last is the one that was refused, or was not looked at any more; those
/// before it may have been taken.
#[test]
fn of_those_for_which_the_channel_may_have_been_closed_the_last_was_not_taken() {
    let mut window = Window::new();
    let ids: Vec<Uuid> = (0..4).map(|_| Uuid::now_v7()).collect();
    for (owner, key) in ["barred", "free", "barred", "free"].into_iter().enumerate() {
        let call = window.begin(owner);
        window.push(call, sent(ids[owner], key, 1));
        window.finish(call);
    }
    let is_it = |route: &Route| route.key.as_str() == "barred";
    let why = Refusal::Forbidden("no".to_owned());
    assert_eq!(window.routes().filter(|(to, _)| is_it(to)).count(), 2);
    assert!(window.refuse_last(is_it, why.clone()));
    assert_eq!(window.settled(), [(2, vec![refused(ids[2], why.clone())])]);
    let left: Vec<usize> = window.into_owners().collect();
    assert_eq!(left, [0, 1, 3]);

    let (mut window, ids) = self::window(&[2, 1]);
    window.confirmed(0, Verdict::Acked, true);
    let large = Refusal::TooLarge { bytes: 1, max: 0 };
    assert!(!window.refuse_size(2, &large) && window.refuse_size(1, &large));
    let both = [
        (0, vec![refused(ids[1], large.clone())]),
        (1, vec![refused(ids[2], large)]),
    ];
    assert_eq!(window.settled(), both);
    assert!(!window.refuse_last(|_| true, why));
}

/// What goes another way belongs to its call all the same.
#[test]
fn a_call_waits_for_what_goes_another_way() {
    let mut window = Window::new();
    let id = Uuid::now_v7();
    let calls: Vec<CallId> = (0..3).map(|owner| window.begin(owner)).collect();
    for call in &calls {
        let sequence = window.push(*call, sent(Uuid::now_v7(), "key", 1));
        window.hold(*call);
        window.finish(*call);
        window.confirmed(sequence, Verdict::Acked, true);
    }
    assert_eq!(window.settled(), []);
    let why = refused(id, Refusal::Full);
    window.release(calls[0], Became::Kept);
    window.release(calls[1], Became::Refused(why.clone()));
    window.release(calls[2], Became::Unknown("lost".to_owned()));
    assert_eq!(window.settled(), [(0, vec![]), (1, vec![why])]);
    assert_eq!(window.lost(), [(2, "lost".to_owned())]);
    assert!(window.is_empty());
}
