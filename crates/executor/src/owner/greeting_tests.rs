//! Tests of how an owner takes it that a life says that it is there.

use attune_core::Refusal;

use super::*;

impl World {
    /// The next message that grants anything; what comes before arrives.
    fn granting(&mut self) -> Sent {
        for _ in 0..100 {
            for sent in std::mem::take(&mut self.sent) {
                if sent.keys().next().is_some() {
                    return sent;
                }
                self.publish(sent.id, Published::Confirmed);
            }
            self.pass(5, true);
        }
        panic!("nothing is granted");
    }

    fn greet(&mut self, worker: WorkerId) {
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

/// Whoever is granted ahead of its slot, and gathers while what comes before it is on its way.
#[test]
fn who_stands_behind_what_came_back_comes_back_with_it_although_its_worker_is_there() {
    for refusal in [Refusal::Unroutable, Refusal::Invalid("no".into())] {
        let (mut world, worker) = World::with_limit(Some(1), 64);
        world.ask(6);
        for _ in 0..4 {
            let sent = world.granting();
            let key = sent.keys().next().unwrap();
            world.publish(sent.id, Published::Confirmed);
            world.end(worker, key);
        }
        let lost = world.granting();
        let [first, second] = lost.keys().collect::<Vec<_>>()[..] else {
            panic!("its runs are short, so one stands ahead")
        };
        world.ask(1);
        assert!(world.sent.is_empty(), "one message after the other");
        world.greet(worker);
        world.refuse(&lost, &refusal);
        let mut told = Vec::new();
        for _ in 0..20 {
            world.pass(50, true);
            for sent in std::mem::take(&mut world.sent) {
                told.extend(sent.keys());
                world.publish(sent.id, Published::Confirmed);
            }
        }
        let ids: Vec<ExecutionId> = told.iter().map(|(id, _)| *id).collect();
        assert!(
            ids.starts_with(&[first.0, second.0]),
            "{refusal:?}: {told:?}"
        );
        assert_eq!(ids.len(), 3, "{refusal:?}: {told:?}");
    }
}
