//! Tests of whose word counts.

use attune_core::Outcome;
use attune_dispatch::Key;

use super::links_tests::nothing_of;
use super::*;
use crate::partition::Completion;

/// What a user of the broker says.
impl World {
    fn end_as(&mut self, user: Option<&str>, worker: WorkerId, (execution_id, attempt): Key) {
        let completion = Completion {
            execution_id,
            attempt,
            action_id: ActionId(1),
            outcome: Arc::new(Outcome::succeeded(None)),
            worker,
            user: user.map(Arc::from),
            ran: Some(1),
        };
        let partition = execution_id.partition().0;
        self.deliver(2, partition, Work::Completions(vec![completion]));
    }

    /// A worker that speaks as `gpu` has been granted something.
    fn with_account() -> (Self, WorkerId, Key) {
        let (mut world, worker) = Self::with_worker(64);
        world.workers[0].user = Some("gpu".to_owned());
        world.look();
        world.ask(1);
        let sent = world.only();
        let key = sent.keys().next().expect("it grants one");
        world.publish(sent.id, Published::Confirmed);
        world.pass(200, true);
        world.sent.clear();
        (world, worker, key)
    }

    /// How often somebody was said to speak in the name of another.
    fn forbidden(&self) -> usize {
        let is_one = |notice: &&Notice| matches!(notice, Notice::Forbidden { .. });
        self.notices.iter().filter(is_one).count()
    }

    fn holds(&self, id: ExecutionId) -> bool {
        self.status(id).is_some()
    }

    /// What is settled, of everything that workers were sent since it was looked last.
    fn settled(&mut self) -> Vec<Key> {
        self.pass(200, true);
        let sent = std::mem::take(&mut self.sent);
        for sent in &sent {
            self.publish(sent.id, Published::Confirmed);
        }
        let sections = sent.iter().flat_map(|sent| &sent.sections);
        sections
            .flat_map(|section| section.settled.clone())
            .collect()
    }
}

#[test]
fn an_end_counts_only_from_the_user_of_its_worker() {
    let (mut world, worker, key) = World::with_account();
    for other in ["default", "", "GPU"] {
        world.end_as(Some(other), worker, key);
    }
    assert!(world.holds(key.0), "nobody else ends it");
    // It would end what runs.
    assert_eq!(world.settled(), []);
    assert_eq!(world.forbidden(), 3);
    world.end_as(Some("gpu"), worker, key);
    assert_eq!(world.settled(), [key]);
    assert!(!world.holds(key.0));
    assert_eq!(world.forbidden(), 3);
}

#[test]
fn a_report_counts_only_from_the_user_of_its_worker() {
    let (mut world, worker, key) = World::with_account();
    let returns = |user: &str| Reported {
        user: Some(Arc::from(user)),
        returned: vec![(key, Arc::from("somebody says so"))],
        ..nothing_of(worker)
    };
    world.report(returns("default"));
    assert_eq!(world.settled(), [], "it was not given back");
    assert_eq!(world.forbidden(), 1);
    world.report(returns("gpu"));
    assert_eq!(world.settled(), [key]);
}

/// Workers of an earlier release, and where the broker vouches for nobody.
#[test]
fn where_nobody_vouches_for_users_every_worker_is_heard() {
    let (mut world, worker, key) = World::with_account();
    world.end_as(None, worker, key);
    assert!(!world.holds(key.0));
    let (mut world, worker) = World::with_worker(64);
    world.ask(1);
    let key = world.only().keys().next().expect("it grants one");
    world.end_as(Some("anybody"), worker, key);
    assert!(!world.holds(key.0));
    assert_eq!(world.forbidden(), 0);
}

/// Whoever takes a partition over may be told of an end before it has read the lease of its worker.
#[test]
fn an_end_of_a_worker_that_is_not_known_yet_is_asked_for_again() {
    let (mut world, worker, key) = World::with_account();
    let lease = world.workers.remove(0);
    world.pass(1_000, true);
    world.sent.clear();
    world.end_as(Some("gpu"), worker, key);
    assert!(world.holds(key.0));
    world.workers.push(lease);
    world.pass(1_000, true);
    let sent = world.only();
    let synced = sent
        .sections
        .iter()
        .find_map(|section| section.sync.clone());
    assert_eq!(synced, Some(vec![key]), "it is told what it holds");
    world.publish(sent.id, Published::Confirmed);
    world.end_as(Some("gpu"), worker, key);
    assert!(!world.holds(key.0));
    assert_eq!(world.forbidden(), 0);
}
