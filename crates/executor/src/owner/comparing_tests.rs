//! Tests of what an owner does with the slots of its partitions: how it compares them with the
//! store's, and how it reads the bodies of what it has granted.

use std::collections::BTreeSet;
use std::sync::Arc;

use attune_core::Refusal;
use attune_dispatch::Key;

use super::*;

impl World {
    pub(super) fn rows(&self, keep: impl Fn(&(StoredSlot, bool)) -> bool) -> Vec<StoredExecution> {
        let kept = self.slots.iter().filter(|slot| keep(slot));
        kept.map(|(slot, _)| slot.execution()).collect()
    }
}

#[test]
fn a_slot_that_only_the_store_knew_is_kept_when_an_older_answer_does_not_show_it() {
    let worker = WorkerId::fresh();
    let mut world = World::serving(1, worker);
    world.holds_back = Some(|call| matches!(call, Call::LoadSlots(_)));
    while world.held_back.is_empty() {
        world.pass(100, true);
    }
    // Somebody's slot comes to light while the answer about the known ones is on its way.
    world.slots.push((slot(2, worker), false));
    while world.held() < 2 {
        world.pass(100, true);
    }
    world.holds_back = None;
    world.pass(1_000, true);
    assert_eq!(world.held(), 2);
    world.pass(30_000, true);
    assert_eq!((world.held(), world.taken_back.len()), (2, 0));
}

/// What differs from memory may be what the next owner of the partition has written.
#[test]
fn an_owner_follows_the_store_only_where_the_partition_is_its_own() {
    let worker = WorkerId::fresh();
    let mut world = World::serving(1, worker);
    world.holds_back = Some(|call| matches!(call, Call::Commit(_)));
    world.slots.clear();
    for _ in 0..100 {
        world.pass(500, true);
    }
    // Nothing is written: the commit says whose the partition is.
    assert_eq!(world.held_back.len(), 1);
}

impl World {
    /// So many wait, all of which may run, for a worker that has room for them.
    fn with_waiting(many: u32) -> Self {
        let mut world = Self::new().free();
        world.action.spec.policy.concurrency.limit = None;
        world.worker_of(5_000);
        world.slots = (1..=many).map(|place| (queued(place), true)).collect();
        world
    }
}

/// The commit that grants a slot answers without the body: it is read.
#[test]
fn what_was_granted_is_read_and_told_a_few_mebibytes_at_a_time() {
    let mut world = World::with_waiting(200);
    world.body_bytes = 900_000;
    world.pass(20_000, true);
    // Nobody confirms anything: 64 MiB and what was read last wait or are on their way, and no more.
    assert!(world.read.iter().all(|many| *many <= 9), "{:?}", world.read);
    let on_the_way: usize = world.read.iter().sum();
    assert!((72..=84).contains(&on_the_way), "{on_the_way}");
    let mut told = 0;
    while !world.sent.is_empty() {
        let many: Vec<usize> = world.sent.iter().map(|sent| sent.ids().count()).collect();
        assert!(many.iter().all(|many| *many <= 10), "{many:?}");
        told += world.confirm().len();
        world.pass(100, true);
    }
    assert_eq!(told, 200);
    // Small ones go many at a time.
    let mut world = World::with_waiting(700);
    world.pass(5_000, true);
    assert_eq!(world.read, [8, 64, 500, 128]);
}

fn queued(place: u32) -> StoredSlot {
    StoredSlot {
        status: Status::Queued,
        attempt: Attempt(0),
        worker: None,
        created: 1_700_001_000_000,
        ..slot(place, WorkerId::fresh())
    }
}

/// What is granted is read together. One that cannot be read waits alone, and is told.
#[test]
fn a_body_that_cannot_be_read_holds_up_its_execution_alone() {
    fn is_bad(call: &Call) -> bool {
        matches!(call, Call::LoadBodies(ids) if ids.contains(&queued(300).id))
    }
    let mut world = World::with_waiting(700);
    world.refuses = Some(is_bad);
    let mut seen = BTreeSet::new();
    let deadline = world.now + 8_000;
    while world.now < deadline {
        world.pass(100, true);
        seen.extend(world.confirm());
    }
    assert_eq!(seen.len(), 699);
    world.pass(30_000, true);
    let partition = PartitionId(0);
    let troubles: Vec<_> = world.owner.partly_unread(world.now).collect();
    let [(of, _, trouble)] = &troubles[..] else {
        panic!("{troubles:?}");
    };
    assert_eq!(*of, partition);
    let words = format!(
        "the parameters of execution {} cannot be read",
        queued(300).id
    );
    assert!(trouble.words.starts_with(&words), "{}", trouble.words);
    assert!(world.owner.trouble(world.now).unwrap().for_ms > 20_000);
    world.refuses = None;
    // What nobody has confirmed until now is before it.
    let mut seen = BTreeSet::new();
    for _ in 0..30 {
        world.pass(100, true);
        seen.extend(world.confirm());
    }
    assert_eq!(seen, [queued(300).id].into());
    assert_eq!(world.owner.trouble(world.now), None);
}

/// Somebody has deleted its row, or it has ended: that no answer names it is no trouble that lasts.
#[test]
fn a_body_that_could_not_be_read_and_is_gone_is_no_trouble() {
    let mut world = World::with_waiting(1);
    world.refuses = Some(|call| matches!(call, Call::LoadBodies(_)));
    world.pass(8_000, true);
    assert_eq!(world.owner.partly_unread(world.now).count(), 1);
    (world.refuses, world.are_gone) = (None, true);
    world.pass(3_000, true);
    assert_eq!(world.owner.partly_unread(world.now).count(), 0);
    assert_eq!(world.owner.trouble(world.now), None);
}

/// Nothing is freed of lost workers, and nothing compared, while the store refuses to be read: that is
/// told, for all partitions, and over when it is.
#[test]
fn reads_beside_the_rounds_that_fail_are_told() {
    let reads: [fn(&Call) -> bool; 4] = [
        |call| matches!(call, Call::WorkerEnds),
        |call| matches!(call, Call::LoadSlots(_)),
        |call| matches!(call, Call::ScanRows { .. }),
        |call| matches!(call, Call::Look),
    ];
    for refuses in reads {
        let worker = WorkerId::fresh();
        let mut world = World::serving(1, worker);
        world.refuses = Some(refuses);
        world.pass(30_000, true);
        let trouble = world.owner.trouble(world.now).unwrap();
        assert!(trouble.for_ms > 15_000, "{trouble:?}");
        assert!(trouble.words.contains("permission denied"), "{trouble:?}");
        assert_eq!(
            world.owner.partly_unread(world.now).count(),
            usize::from(PARTITIONS)
        );
        world.refuses = None;
        world.pass(5_000, true);
        assert_eq!(world.owner.trouble(world.now), None);
    }
}

/// The row of a worker that has given its lease up, and has said what had begun there.
fn retired(worker: WorkerId, begun: Option<Key>) -> WorkerEnd {
    WorkerEnd {
        worker,
        pool: "default".to_owned(),
        user: None,
        slots: 64,
        renewals: 3,
        ttl: 0,
        ended: true,
        draining: true,
        gone: false,
        begun: begun.map(|begun| Arc::new(BTreeSet::from([begun]))),
    }
}

#[test]
fn a_worker_that_came_and_went_between_two_looks_is_left_the_grace() {
    let (worker, other) = (WorkerId::fresh(), WorkerId::fresh());
    let mut world = World::serving(1, worker);
    let is_asked = |world: &World| world.owner.workers.wake_at() > Some(world.now + 100);
    while !is_asked(&world) {
        world.pass(10, true);
    }
    // It has registered, been granted one and retired since the last look.
    let ended = world.now;
    world.slots[0].0.worker_over = true;
    world.workers.push(retired(worker, None));
    world.owner.sweep.hurry(ended);
    world.pass(GRACE - 100, true);
    assert_eq!(world.taken_back, []);
    world.pass(2_000, true);
    assert_eq!(world.taken_back.len(), 1);

    // One whose row is gone has nothing to say.
    let mut world = World::serving(1, other);
    world.slots[0].0.worker_over = true;
    let gone = world.now;
    world.owner.sweep.hurry(gone);
    world.pass(2_000, true);
    assert_eq!(world.taken_back.len(), 1);
}

#[test]
fn nobody_waits_for_a_worker_whose_process_is_gone_and_what_had_begun_there_is_known() {
    let worker = WorkerId::fresh();
    let mut world = World::serving(2, worker);
    let begun = (world.slots[0].0.id, world.slots[0].0.attempt);
    world.workers.push(WorkerEnd {
        worker,
        pool: "default".to_owned(),
        user: None,
        slots: 64,
        renewals: 3,
        ttl: 60_000,
        ended: false,
        draining: false,
        gone: false,
        begun: None,
    });
    world.pass(3_000, true);
    let end = world.workers.last_mut().expect("the worker of this test");
    let begun = Arc::new(BTreeSet::from([begun]));
    (end.ended, end.gone, end.begun) = (true, true, Some(begun));
    for (slot, _) in &mut world.slots {
        slot.worker_over = true;
    }
    let said = world.now;
    // What it has said last may be on its way for a moment.
    world.pass(900, true);
    assert_eq!(world.taken_back, []);
    world.pass(3_000, true);
    let when = world.taken_back.iter().map(|(_, at)| *at - said);
    let when: Vec<_> = when.collect();
    assert!(
        when.len() == 2 && when.iter().all(|at| *at < 2_200),
        "{when:?}"
    );
    let unbegun = world.slots.iter().map(|(slot, _)| slot.unbegun);
    assert_eq!(unbegun.collect::<Vec<_>>(), [0, 1], "only the first counts");
}

#[test]
fn what_never_began_on_a_worker_that_has_retired_costs_no_attempt() {
    let worker = WorkerId::fresh();
    let mut world = World::serving(2, worker);
    let begun = (world.slots[0].0.id, world.slots[0].0.attempt);
    for (slot, _) in &mut world.slots {
        slot.worker_over = true;
    }
    world.workers.push(retired(worker, Some(begun)));
    // Ends that it has reported may be on their way: nobody hurries.
    let retired = world.now;
    world.owner.sweep.hurry(retired);
    world.pass(GRACE - 100, true);
    assert_eq!(world.taken_back, []);
    world.pass(4_000, true);
    assert_eq!(world.taken_back.len(), 2);
    let unbegun = world.slots.iter().map(|(slot, _)| slot.unbegun);
    assert_eq!(unbegun.collect::<Vec<_>>(), [0, 1], "only the first counts");
}

#[test]
fn a_change_of_which_nobody_has_told_is_learnt_within_the_interval() {
    let worker = WorkerId::fresh();
    let mut world = World::serving(1, worker);
    world.pass(1_000, true);
    let limit = |world: &World| {
        let partition = world.owner.partition(PartitionId(0)).unwrap();
        partition.stats(ActionId(1)).unwrap().max_concurrent
    };
    let before = limit(&world);
    world.action.version += 1;
    world.action.spec.policy.concurrency.limit = Some(77);
    assert_ne!(before, Some(77));
    world.pass(11_000, true);
    assert_eq!(limit(&world), Some(77));
    // What was read before something newer was learnt changes nothing.
    world.action.version -= 1;
    world.action.spec.policy.concurrency.limit = Some(3);
    world.pass(30_000, true);
    assert_eq!(limit(&world), Some(77));
    let learnt = world.notices.iter();
    let learnt = learnt.filter(|notice| matches!(notice, Notice::ActionHadChanged { .. }));
    assert_eq!(learnt.count(), 1);
}

/// Others get no message of a partition for as long as somebody else has it, so an owner that cannot
/// reach the store gives them back once others may have taken over; whether the store fails or is mute.
#[test]
fn messages_go_back_when_others_may_own_their_partitions() {
    let all = usize::from(PARTITIONS);
    for is_mute in [false, true] {
        let mut world = World::serving(1, WorkerId::fresh());
        world.pass(10_000, true);
        assert_eq!((world.owner.served(), world.given_back), (all, 0));
        let epoch = world.leases[0].epoch;
        world.is_mute = is_mute;
        world.away_until = world.now + 4 * TTL;
        // What was asked for just before counts from then.
        world.pass(TTL / 2, true);
        assert_eq!((world.owner.served(), world.given_back), (all, 0));
        world.pass(TTL / 2 + TTL / 15 + 200, true);
        assert_eq!((world.owner.served(), world.given_back), (0, all));
        world.pass(3 * TTL + 5_000, true);
        assert_eq!((world.owner.served(), world.given_back), (all, all));
        assert_eq!(world.leases[0].epoch, Epoch(epoch.0 + 1));
    }
}

#[test]
fn with_nobody_who_receives_it_waits_until_somebody_is_heard_of() {
    let (mut world, worker) = World::with_worker(64);
    world.ask(1);
    let sent = world.only();
    let key = sent.keys().next().unwrap();
    world.refuse(&sent, &Refusal::Unroutable);
    assert_eq!(world.status(key.0), Some((Status::Queued, 1, None)));
    world.pass(400, false);
    assert!(world.sent.is_empty());
    // It has renewed its lease: it may be back.
    world.pass(1_500, true);
    let compared = world.only();
    assert_eq!(compared.worker, worker);
    assert_eq!(compared.only(), (1, Some(&[][..]), &[][..], vec![]));
    world.publish(compared.id, Published::Confirmed);
    let again = world.only();
    assert_eq!(again.only(), (2, None, &[][..], vec![(key.0, Attempt(2))]));
}

/// Leases of which nobody receives anything are found out before anything is granted to them, however many they are
/// and however often they are renewed.
#[test]
fn whoever_comes_beside_others_is_granted_nothing_before_messages_reach_it() {
    let (mut world, worker) = World::with_worker(2);
    world.ask(1);
    assert_eq!(world.confirm().len(), 1);
    let ghosts: Vec<WorkerId> = (0..20).map(|_| world.worker_of(64)).collect();
    world.look();
    let asked = std::mem::take(&mut world.sent);
    let of: BTreeSet<WorkerId> = asked.iter().map(|sent| sent.worker).collect();
    assert_eq!(of, ghosts.iter().copied().collect());
    world.ask(1);
    assert_eq!(world.only().worker, worker, "it is known to be there");
    for sent in &asked {
        world.refuse(sent, &Refusal::Unroutable);
    }
    // All of them are renewed for a while.
    for _ in 0..10 {
        world.ask(1);
        world.pass(500, true);
        for sent in std::mem::take(&mut world.sent) {
            assert_eq!(sent.ids().count(), 0, "nobody may have it");
            if ghosts.contains(&sent.worker) {
                world.refuse(&sent, &Refusal::Unroutable);
            }
        }
    }
    // One is there after all.
    world.pass(2_500, true);
    let sent = std::mem::take(&mut world.sent);
    let found = sent.iter().find(|sent| ghosts.contains(&sent.worker));
    let found = found.expect("those are asked that are renewed");
    world.publish(found.id, Published::Confirmed);
    assert_eq!(world.only().worker, found.worker);
    let grants = world
        .slots
        .iter()
        .map(|(slot, _)| (slot.worker, slot.attempt));
    let of = |worker| (Some(worker), Attempt(1));
    let expected = [vec![of(worker); 2], vec![of(found.worker); 10]].concat();
    assert_eq!(
        grants.collect::<Vec<_>>(),
        expected,
        "none had to come back"
    );
}
