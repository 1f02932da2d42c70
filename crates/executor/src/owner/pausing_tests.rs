//! Tests of what operators hold, on its way to the partitions.

use attune_core::{PauseMode, PauseTarget, RequestId};

use super::*;

fn pauses(version: i64, held: bool) -> Arc<Pauses> {
    let mut pauses = Pauses {
        version,
        ..Pauses::default()
    };
    if held {
        pauses.held.insert(PauseTarget::All, PauseMode::Pause);
    }
    Arc::new(pauses)
}

impl World {
    fn change_pauses(&mut self, version: i64, held: bool) {
        self.sets.pauses = pauses(version, held);
    }

    /// The version by which each partition goes.
    fn go_by(&self, version: i64) -> bool {
        (0..PARTITIONS).all(|id| {
            let partition = self.owner.partition(PartitionId(id));
            partition.is_some_and(|it| it.pauses_version() == version)
        })
    }
}

fn changed() -> Work {
    Work::Pauses(vec![RequestId::fresh()])
}

fn policies(version: i64) -> Arc<PolicySet> {
    Arc::new(PolicySet {
        version,
        ..PolicySet::default()
    })
}

impl World {
    /// Whether each partition has written down that it goes by a version of the policy set.
    fn decide_under(&self, version: i64) -> bool {
        (0..PARTITIONS).all(|id| {
            let partition = self.owner.partition(PartitionId(id));
            partition.is_some_and(|it| it.goes_by() == version)
        })
    }
}

#[test]
fn a_policy_set_is_written_down_by_every_partition_before_the_command_is_answered() {
    let mut world = World::new().free();
    world.sets.policies = policies(3);
    world.pass(5_000, true);
    assert!(world.decide_under(3), "after a takeover too");
    world.sets.policies = policies(4);
    world.deliver(1, 0, Work::Policies(vec![RequestId::fresh()]));
    world.pass(1, false);
    assert!(world.decide_under(4) && world.is_acked(1));
    // A lost command costs one pass, and a read that began before says what was.
    world.sets.policies = policies(5);
    world.pass(10_500, true);
    assert!(world.decide_under(5));
    world.sets.policies = policies(4);
    world.pass(10_500, true);
    assert!(world.decide_under(5));
}

#[test]
fn documents_that_cannot_be_read_hold_up_no_pause() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(|call| matches!(call, Call::LoadPolicies { .. }));
    world.sets.policies = policies(1);
    world.change_pauses(1, true);
    world.deliver(1, 0, Work::Policies(vec![RequestId::fresh()]));
    world.deliver(2, 0, changed());
    world.pass(6_000, true);
    assert!(world.is_acked(2) && world.go_by(1));
    assert!(!world.is_acked(1) && world.decide_under(0));
    let trouble = world.owner.trouble(world.now).unwrap();
    assert!(
        trouble.words.contains("policy documents"),
        "{}",
        trouble.words
    );
    world.refuses = None;
    world.pass(2_500, true);
    assert!(world.is_acked(1) && world.decide_under(1));
}

#[test]
fn a_command_brings_the_set_to_every_partition_before_it_is_answered() {
    let mut world = World::new().free();
    world.change_pauses(3, true);
    world.pass(5_000, true);
    assert!(world.go_by(3), "it is loaded with the queues");
    world.change_pauses(4, false);
    // It is being read, as it was, when the next change comes.
    world.holds_back = Some(|call| matches!(call, Call::LoadPauses { .. }));
    world.deliver(1, 0, changed());
    world.change_pauses(5, true);
    world.deliver(2, 7, changed());
    assert!(world.go_by(3) && world.acked.is_empty());
    world.holds_back = None;
    world.pass(1, false);
    assert!(world.go_by(5));
    assert!(world.is_acked(1) && world.is_acked(2));
}

/// Whoever stands ahead may be begun as long as its worker has not said that it is not.
#[test]
fn a_change_is_answered_when_nobody_stands_ahead_or_after_a_while() {
    let (pause, limit) = (changed(), look_ups::change("core.noop"));
    for (change, comes_back) in [
        (&pause, true),
        (&pause, false),
        (&limit, true),
        (&limit, false),
    ] {
        let mut world = World::new().free();
        world.action.spec.policy.concurrency.limit = Some(1);
        world.action.spec.action_ref = "core.noop".parse().unwrap();
        // The rows that this store shows to a comparison are those of slots alone.
        world.owner.options.reconcile.interval = 60_000;
        let worker = world.worker();
        let mut ahead = slot(2, worker);
        (ahead.status, ahead.running_for) = (Status::Queued, None);
        ahead.grant_no = Some(2);
        world.slots = vec![(slot(1, worker), true), (ahead.clone(), true)];
        world.pass(5_000, true);
        world.change_pauses(1, true);
        world.deliver(1, 0, change.clone());
        world.deliver(2, 3, changed());
        // Whatever else is decided there makes nobody wait anew.
        for other in 10..15 {
            let work = Work::Operations(vec![RequestId::fresh()]);
            world.deliver(other, 0, work);
            world.deliver(other + 10, 0, look_ups::change("core.other"));
            world.pass(500, true);
        }
        assert!(world.is_acked(2));
        assert!(!world.is_acked(1), "one is ahead: {change:?}");
        let give_back = |world: &mut World| {
            let grant = (ahead.id, ahead.attempt);
            world.give(VecDeque::from([Input::Reported(vec![Reported {
                returned: vec![(grant, Arc::from("called"))],
                ..links_tests::nothing_of(worker)
            }])]));
        };
        if comes_back {
            give_back(&mut world);
            world.pass(100, false);
        } else {
            world.pass(1_000, true);
        }
        assert!(world.is_acked(1), "{change:?}");
        let here = world.owner.partition(PartitionId(0)).unwrap();
        let is_ahead = here
            .held_lane(|_| true)
            .is_some_and(|(other, _)| other == worker);
        assert_eq!(is_ahead, !comes_back);
        // A copy of what was refused is refused at once.
        world.deliver(3, 0, change.clone());
        world.pass(100, true);
        assert!(world.is_acked(3), "{change:?}");
        assert_eq!(world.owner.knows_who_keeps(), !comes_back);
        // Who comes back without anybody asking keeps nothing any more.
        give_back(&mut world);
        world.pass(1_100, true);
        assert!(!world.owner.knows_who_keeps(), "{change:?}");
    }
}

#[test]
fn a_lost_command_costs_one_pass() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.change_pauses(1, true);
    world.pass(10_500, true);
    assert!(world.go_by(1));
    // A read that began before says what was.
    world.change_pauses(0, false);
    world.pass(10_500, true);
    assert!(world.go_by(1));
}

#[test]
fn what_cannot_be_read_is_told_and_stops_nothing() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(|call| matches!(call, Call::LoadPauses { .. }));
    world.change_pauses(1, true);
    world.deliver(1, 0, changed());
    world.deliver(2, 0, super::look_ups::change("t.good"));
    world.pass(6_000, true);
    assert!(world.is_acked(2), "what came behind it goes on");
    assert!(!world.is_acked(1) && world.go_by(0));
    let trouble = world.owner.trouble(world.now).unwrap();
    assert!(
        trouble.words.contains("what operators hold"),
        "{}",
        trouble.words
    );
    world.refuses = None;
    world.pass(2_500, true);
    assert!(world.is_acked(1) && world.go_by(1));
    assert_eq!(world.owner.trouble(world.now), None);
}

#[test]
fn what_cannot_be_read_takes_no_place_of_what_comes() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    world.refuses = Some(|call| matches!(call, Call::LoadPauses { .. }));
    world.change_pauses(1, true);
    for number in 1..=20 {
        world.deliver(number, u16::from(number > 10), changed());
    }
    world.pass(6_000, true);
    let waits: Vec<u64> = (1..=20).filter(|number| !world.is_acked(*number)).collect();
    assert_eq!(waits, [10, 20], "the newest of each partition");
    world.refuses = None;
    world.pass(2_500, true);
    assert!(world.is_acked(10) && world.is_acked(20) && world.go_by(1));
}

#[test]
fn words_of_a_partition_that_is_refused_hold_up_no_other() {
    let mut world = World::new().free();
    world.pass(5_000, true);
    let (here, there) = (PartitionId(0), PartitionId(3));
    let wall = 1_700_000_000_000 + world.now;
    let mut action = world.action.clone();
    action.version += 1;
    action.spec.policy.concurrency.group_by = vec!["user".parse().unwrap()];
    action.spec.policy.concurrency.group_limit = Some(1);
    let row = StoredExecution {
        id: ExecutionId::new(here, Seq::new(Epoch(1), 5)),
        action_id: action.id,
        priority: Priority::Normal,
        front: false,
        status: Status::Queued,
        attempt: Attempt(0),
        grant_no: None,
        unbegun: 0,
        retried: false,
        created: wall,
        not_before: None,
        cancel_requested: false,
        demand: None,
        asker: None,
        kept_until: None,
        worker: None,
    };
    let id = row.id;
    let partition = world.owner.partition_mut(here).unwrap();
    partition.step(wall, Event::ActionKnown(Box::new(action)));
    partition.step(wall, Event::RecoverRows(vec![row]));
    assert_eq!(partition.unknown(10), [id]);
    // Words of the other one were read, and its commits are refused since.
    let epoch = world.owner.places[&there].epoch;
    let mut batch = crate::stored::Batch::new(world.owner.options.id, wall);
    batch.fences = vec![(there, epoch)];
    let commit = Arc::new(crate::round::Commit {
        batch,
        decided: vec![],
    });
    let round = crate::round::Round {
        commit,
        tells: BTreeMap::new(),
    };
    let mut rewrite = Rewrite::new(world.now, round, "full".to_owned());
    rewrite.at = None;
    world.owner.rewrites.insert(there, rewrite);
    world.owner.pending.push_back((there, Event::Words(vec![])));
    world.holds_back = Some(|call| matches!(call, Call::LoadWords(_)));
    world.pass(4_000, true);
    assert!(world.owner.grouping.is_asking(), "it asks for those here");
}

#[test]
fn whoever_takes_over_grants_nothing_to_a_pool_without_workers() {
    for has_worker in [false, true] {
        let mut world = World::new().free();
        let mut waiting = slot(1, WorkerId::fresh());
        (waiting.status, waiting.worker) = (Status::Queued, None);
        world.slots = vec![(waiting, true)];
        if has_worker {
            world.worker();
        }
        world.pass(5_000, true);
        assert_eq!(world.owner.served(), usize::from(PARTITIONS));
        assert_eq!(world.held(), usize::from(has_worker));
        // It waits for whoever comes.
        if !has_worker {
            world.worker();
            world.give(VecDeque::from([Input::Hello(Vec::new())]));
            assert_eq!(world.held(), 1);
        }
    }
}

#[test]
fn what_cannot_be_read_together_is_read_in_parts_to_group_a_queue_anew() {
    let mut world = World::new().free();
    world.action.spec.policy.concurrency.group_by = vec!["user".parse().unwrap()];
    world.action.spec.policy.concurrency.group_limit = Some(1);
    let waiting = |place| {
        let mut slot = slot(place, WorkerId::fresh());
        (slot.status, slot.worker, slot.attempt) = (Status::Queued, None, Attempt(0));
        slot.created += 1_000_000;
        (slot, true)
    };
    world.slots = (1..=300).map(waiting).collect();
    // A read of more takes longer than a statement may.
    world.refuses = Some(|call| matches!(call, Call::LoadWords(ids) if ids.len() > 50));
    world.pass(10_000, true);
    let unknown = |world: &World| {
        let partition = world.owner.partition(PartitionId(0));
        partition.map_or(0, |partition| partition.unknown(1_000).len())
    };
    assert_eq!(unknown(&world), 300, "no answer has anybody in it");
    let asked = world.owner.grouping.fewer_at_once(PartitionId(0));
    assert!(asked.is_some_and(|asked| asked <= 50), "{asked:?}");
}
