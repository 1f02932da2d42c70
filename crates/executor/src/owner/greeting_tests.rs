//! Tests of how an owner takes it that a life says that it is there.

use attune_core::Refusal;

use super::*;

impl World {
    pub(super) fn greet(&mut self, worker: WorkerId) {
        self.give(VecDeque::from([Input::Hello(vec![worker])]));
    }
}

/// Its lease was seen before it heard anything. Renewals are seconds apart.
#[test]
fn who_says_that_it_is_there_is_granted_something_before_it_renews() {
    let (mut world, worker) = World::with_worker(64);
    world.ask(1);
    let lost = world.only();
    let key = lost.keys().next().unwrap();
    world.refuse(&lost, &Refusal::Unroutable);
    world.pass(2_000, false);
    assert!(world.sent.is_empty(), "nobody hears it");
    world.greet(worker);
    let asked = world.only();
    assert_eq!(asked.only().1, Some(&[][..]));
    world.publish(asked.id, Published::Confirmed);
    let granted = world.only();
    assert_eq!(granted.keys().collect::<Vec<_>>(), [(key.0, Attempt(2))]);
}

/// What it says comes another way than what the broker says of a message to it.
#[test]
fn who_says_that_it_is_there_is_asked_although_an_earlier_message_comes_back_later() {
    let (mut world, worker) = World::with_worker(64);
    world.ask(1);
    let lost = world.only();
    world.greet(worker);
    assert!(world.sent.is_empty(), "one message after the other");
    world.refuse(&lost, &Refusal::Unroutable);
    world.pass(200, false);
    let asked = world.only();
    assert_eq!(asked.only().1, Some(&[][..]));
    // That nobody receives this one counts.
    world.refuse(&asked, &Refusal::Unroutable);
    world.pass(2_000, false);
    assert!(world.sent.is_empty());
}
