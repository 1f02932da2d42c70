//! A grant names the worker that may start the attempt, and its owner writes that it has started.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{Attempt, ExecutionId, Status, WorkerId};
use chrono::{DateTime, TimeDelta, Utc};

use super::support::{
    World, cancel, end, fenced, grant_to, now, partitions, put_back, revoke, start,
};
use attune_store::{Batch, End, ExecutionRecord, PutBack, Store, Update};

const SECOND: TimeDelta = TimeDelta::seconds(1);

fn keeps(id: ExecutionId, attempt: i32) -> Update {
    let until = Some(now() + TimeDelta::hours(1));
    let back = PutBack {
        not_before: until,
        unbegun: 0,
        last_error: Some("no luck".to_owned()),
        keeps_slot: true,
    };
    Update {
        status: None,
        ..put_back(id, attempt, back)
    }
}

/// What a record says of the attempt that holds the slot.
fn attempt_of(record: &ExecutionRecord) -> (Status, Option<WorkerId>, Option<DateTime<Utc>>) {
    (record.status, record.worker, record.started_at)
}

/// From its grant on it is known whose an attempt is: to a new owner, to the comparison, to operators and
/// to clients. Who waits is nobody's.
pub async fn a_grant_names_its_worker(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(1, "a").await;
    let (one, two) = (world.worker("one").await, world.worker("two").await);
    let at_once = world.insert_granted(&action, one).await;
    let later = world.insert_queued(&action).await;
    let to_nobody = world.insert_requested(&action).await;
    let waits = world.insert_queued(&action).await;
    world.update(vec![grant_to(later, 1, two)]).await;
    let expected = [
        (at_once, Status::Requested, Some(one), Some(1)),
        (later, Status::Requested, Some(two), Some(100)),
        (to_nobody, Status::Requested, None, Some(1)),
        (waits, Status::Queued, None, None),
    ];

    for (id, status, worker, _) in expected {
        let record = world.record(id).await;
        assert_eq!(attempt_of(&record), (status, worker, None));
    }
    let slice = store.scan_active(&partitions(), None, 9).await.unwrap();
    let page = store.load_partition(action.partition, None, 9).await;
    for rows in [slice.rows, page.unwrap().rows] {
        let mut found: Vec<_> = rows
            .iter()
            .map(|row| (row.id, row.status, row.worker, row.grant_no))
            .collect();
        found.sort_unstable_by_key(|(id, ..)| *id);
        assert_eq!(found, expected);
    }
    let asked = expected.map(|(id, ..)| id);
    let mut slots = store.load_slots(&asked).await.unwrap();
    slots.sort_unstable_by_key(|slot| slot.id);
    let found: Vec<_> = slots
        .iter()
        .map(|slot| (slot.id, slot.status, slot.worker, slot.grant_no))
        .collect();
    assert_eq!(found, expected[..3]);
    let apart = |slot: &attune_store::SlotRow| slot.worker_over || slot.running_for.is_some();
    assert!(!slots.iter().any(apart), "{slots:?}");
    let holders = store.slot_holders(action.id, None, 9).await.unwrap();
    let found: Vec<_> = holders
        .iter()
        .map(|holder| {
            let worker = holder.worker.as_ref();
            (holder.id, holder.status, worker.map(|worker| worker.id))
        })
        .collect();
    let whose = expected.map(|(id, status, worker, _)| (id, status, worker));
    assert_eq!(found, whose[..3]);
    let names: Vec<_> = holders
        .iter()
        .map(|holder| holder.worker.as_ref()?.name.as_deref())
        .collect();
    assert_eq!(names, [Some("one"), Some("two"), None]);
}

/// An execution that is granted ahead of its slot waits, with its worker and its attempt, until it has the slot; what
/// comes back of it is nobody's again. Owners know it: with all that is active, and where they ask for it.
pub async fn a_grant_ahead_of_a_slot_waits_with_its_worker(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let worker = world.worker("w").await;
    let ids = [
        world.insert_queued(&action).await,
        world.insert_queued(&action).await,
    ];
    let ahead = |id, attempt| Update {
        status: None,
        grant_no: Some(70),
        ..grant_to(id, attempt, worker)
    };
    // Each is written twice, as by an owner that has not heard of the first.
    for _ in 0..2 {
        let batch = Batch {
            updates: ids.iter().map(|id| ahead(*id, 1)).collect(),
            ..world.batch()
        };
        let bodies = world.commit(&batch).await.granted;
        assert_eq!(bodies.len(), 2, "they are told to their worker");
        for id in ids {
            let record = world.record(id).await;
            assert_eq!(attempt_of(&record), (Status::Queued, Some(worker), None));
            assert_eq!(record.attempt, Attempt(1));
            assert!(record.requested_at.is_some());
        }
    }
    let slots = store.load_slots(&ids).await.unwrap();
    assert!(slots.iter().all(|slot| slot.status == Status::Queued));
    assert_eq!(slots.len(), 2);
    let slice = store.scan_active(&partitions(), None, 9).await.unwrap();
    let known = slice.rows.iter().map(|row| (row.status, row.worker));
    assert_eq!(
        known.collect::<Vec<_>>(),
        [(Status::Queued, Some(worker)); 2]
    );
    let holders = store.slot_holders(action.id, None, 9).await.unwrap();
    assert!(holders.is_empty(), "nobody holds a slot: {holders:?}");

    // One has its slot, and keeps the number of its grant; the other comes back, and is granted ahead again in the
    // same batch the next time.
    let handed_on = Update {
        grant_no: None,
        ..grant_to(ids[0], 1, worker)
    };
    world.update(vec![handed_on, revoke(ids[1], 1)]).await;
    let record = world.record(ids[0]).await;
    assert_eq!(attempt_of(&record), (Status::Requested, Some(worker), None));
    assert_eq!(record.grant_no, Some(70));
    let record = world.record(ids[1]).await;
    assert_eq!(attempt_of(&record), (Status::Queued, None, None));
    let back = PutBack {
        not_before: None,
        unbegun: 1,
        last_error: None,
        keeps_slot: false,
    };
    let again = Update {
        status: Some(Status::Queued),
        worker: Some(worker),
        grant_no: Some(71),
        ..put_back(ids[1], 2, back)
    };
    world.update(vec![again]).await;
    let record = world.record(ids[1]).await;
    assert_eq!(attempt_of(&record), (Status::Queued, Some(worker), None));
    assert_eq!(record.attempt, Attempt(2));
    let rows = store.load_slots(&ids[1..]).await.unwrap();
    assert_eq!(rows[0].unbegun, 1);
    // It may end where its worker has handed a slot on to it that its owner does not know of.
    let batch = Batch {
        ends: vec![end(ids[1], Status::Succeeded)],
        ..world.batch()
    };
    world.commit(&batch).await;
    let record = world.record(ids[1]).await;
    assert_eq!(
        (record.status, record.worker),
        (Status::Succeeded, Some(worker))
    );
    assert!(record.requested_at.is_some());
}

/// What its worker says to have started runs since then; said again it stays as it was said first. The mark
/// that it shall be ended goes with it.
pub async fn what_is_said_to_have_started_runs(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let worker = world.worker("w").await;
    let ids = [
        world.insert_granted(&action, worker).await,
        world.insert_granted(&action, worker).await,
    ];
    let since = now() - SECOND;
    let mut marked = start(ids[1], 1, since + SECOND);
    marked.cancel_requested = true;
    world.update(vec![marked, start(ids[0], 1, since)]).await;
    let before = [world.record(ids[0]).await, world.record(ids[1]).await];
    let running = |since| (Status::Running, Some(worker), Some(since));
    assert_eq!(attempt_of(&before[0]), running(since));
    assert_eq!(attempt_of(&before[1]), running(since + SECOND));
    assert_eq!(
        before.each_ref().map(|record| record.cancel_requested),
        [false, true]
    );
    let slots = store.load_slots(&ids[..1]).await.unwrap();
    assert_eq!(
        (slots[0].status, slots[0].worker),
        (Status::Running, Some(worker))
    );
    let ran = slots[0].running_for.unwrap();
    assert!(ran < Duration::from_secs(60), "{ran:?}");
    let holders = store.slot_holders(action.id, None, 9).await.unwrap();
    assert_eq!(holders[0].started_at, Some(since));

    let later = since + SECOND * 2;
    world.update(vec![start(ids[0], 1, later)]).await;
    assert_eq!(world.record(ids[0]).await, before[0]);
    // It moves on from there as it would from its grant.
    world.update(vec![cancel(ids[0], 1)]).await;
    let record = world.record(ids[0]).await;
    assert_eq!(attempt_of(&record), running(since));
    assert!(record.cancel_requested);
}

/// What is said of another attempt than the one that holds the slot, or of one that has none, changes
/// nothing.
pub async fn only_the_attempt_that_holds_the_slot_starts(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let worker = world.worker("w").await;
    let waits = world.insert_queued(&action).await;
    let first = world.insert_granted(&action, worker).await;
    let second = world.insert_granted(&action, worker).await;
    let back = world.insert_granted(&action, worker).await;
    let kept = world.insert_granted(&action, worker).await;
    let ended = world.insert_granted(&action, worker).await;
    let unknown = world.queued(&action).id;
    world.end(&[ended], Status::Cancelled).await;
    let changes = vec![revoke(second, 1), revoke(back, 1), keeps(kept, 1)];
    world.update(changes).await;
    world.update(vec![grant_to(second, 2, worker)]).await;
    let mut before = Vec::new();
    for id in [waits, first, second, back, kept, ended] {
        before.push(world.record(id).await);
    }
    let late = vec![
        start(waits, 0, now()),
        start(first, 0, now()),
        start(second, 1, now()),
        start(back, 1, now()),
        start(kept, 1, now()),
        start(ended, 1, now()),
        start(unknown, 1, now()),
    ];
    world.update(late).await;
    let early = vec![
        start(waits, 1, now()),
        start(first, 2, now()),
        start(kept, 2, now()),
    ];
    world.update(early).await;
    for record in before {
        assert_eq!(world.record(record.id).await, record);
    }
    assert_eq!(store.find_execution(unknown).await.unwrap(), None);
    world
        .update(vec![start(first, 1, now()), start(second, 2, now())])
        .await;
    for id in [first, second] {
        assert_eq!(world.record(id).await.status, Status::Running);
    }
}

/// Where an update gives a slot, takes it back or keeps it for the next try, nothing starts with it: what
/// was said was said of the attempt before.
pub async fn a_start_does_not_go_with_another_change_of_its_slot(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let worker = world.worker("w").await;
    let ids = [
        world.insert_granted(&action, worker).await,
        world.insert_granted(&action, worker).await,
        world.insert_granted(&action, worker).await,
    ];
    let updates = [
        grant_to(ids[0], 2, worker),
        revoke(ids[1], 1),
        keeps(ids[2], 1),
    ];
    let batch = Batch {
        updates: Vec::from(updates.map(|update| Update {
            started: Some(now()),
            ..update
        })),
        ..world.batch()
    };
    for _ in 0..2 {
        world.commit(&batch).await;
        let expected = [
            (Status::Requested, Some(worker), None),
            (Status::Queued, None, None),
            (Status::Requested, None, None),
        ];
        for (id, expected) in ids.iter().zip(expected) {
            assert_eq!(attempt_of(&world.record(*id).await), expected);
        }
    }
}

/// The history has whom the last attempt was granted to, and since when it ran: as it was said, or by how
/// long it ran, or not at all where it never began.
pub async fn the_history_tells_when_it_began(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let worker = world.worker("w").await;
    let since = now() - SECOND * 2;
    let at = now();
    let ran = Some(Duration::from_micros(1_500_001));
    let began = at - TimeDelta::microseconds(1_500_001);
    let mut cases = Vec::new();
    for (said, ran, started_at) in [
        (true, ran, Some(since)),
        (true, None, Some(since)),
        (false, ran, Some(began)),
        (false, Some(Duration::ZERO), Some(at)),
        (false, None, None),
    ] {
        let id = world.insert_granted(&action, worker).await;
        if said {
            world.update(vec![start(id, 1, since)]).await;
        }
        cases.push((id, ran, Some(worker), started_at));
    }
    cases.push((world.insert_queued(&action).await, None, None, None));
    let batch = Batch {
        at,
        ends: cases
            .iter()
            .map(|(id, ran, ..)| End {
                ran: *ran,
                ..end(*id, Status::Succeeded)
            })
            .collect(),
        ..world.batch()
    };
    for _ in 0..2 {
        world.commit(&batch).await;
        for (id, _, worker, started_at) in &cases {
            let record = world.record(*id).await;
            let expected = (Status::Succeeded, *worker, *started_at);
            assert_eq!(attempt_of(&record), expected);
            assert_eq!(record.finished_at, Some(at));
        }
    }
}

/// How long something ran is what a worker says, and it may say anything: the end is written.
pub async fn no_run_is_too_long_to_be_stored(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let worker = world.worker("w").await;
    for ran in [
        Duration::MAX,
        Duration::from_secs(u64::MAX / 1_000),
        Duration::from_secs(4_000 * 366 * 86_400),
        Duration::from_nanos(1),
    ] {
        let id = world.insert_granted(&action, worker).await;
        let ends = vec![End {
            ran: Some(ran),
            ..end(id, Status::Succeeded)
        }];
        let batch = Batch {
            ends,
            ..world.batch()
        };
        assert_eq!(world.commit(&batch).await.ended, 1);
        let record = world.record(id).await;
        assert_eq!(record.worker, Some(worker));
        assert!(record.started_at.is_some_and(|began| began <= batch.at));
    }
}

/// Who is put back, loses its slot or keeps it for the next try is no worker's, and has not started; the
/// next grant is whose it says.
pub async fn who_holds_no_slot_for_an_attempt_has_no_worker(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let (one, two) = (world.worker("one").await, world.worker("two").await);
    let back = PutBack {
        not_before: None,
        unbegun: 1,
        last_error: None,
        keeps_slot: false,
    };
    let mut ids = Vec::new();
    for begun in [true, false] {
        for _ in 0..3 {
            ids.push(match begun {
                true => world.insert_running(&action, one).await,
                false => world.insert_granted(&action, one).await,
            });
        }
    }
    let changes = ids.chunks(3).flat_map(|ids| {
        [
            revoke(ids[0], 1),
            put_back(ids[1], 1, back.clone()),
            keeps(ids[2], 1),
        ]
    });
    world.update(changes.collect()).await;
    let all = store.scan_active(&partitions(), None, 99).await.unwrap();
    assert_eq!(all.rows.len(), 6);
    for row in all.rows {
        assert_eq!(row.worker, None, "{row:?}");
        let record = world.record(row.id).await;
        assert_eq!((record.worker, record.started_at), (None, None));
    }
    let slots = store.load_slots(&ids).await.unwrap();
    assert_eq!(slots.len(), 2, "two are kept");
    assert!(slots.iter().all(|slot| slot.worker.is_none()));
    let holders = store.slot_holders(action.id, None, 9).await.unwrap();
    assert!(holders.iter().all(|holder| holder.worker.is_none()));

    // Of one that keeps its slot the next try is written with it, as its owner does.
    let next = ids.iter().enumerate().map(|(n, id)| Update {
        put_back: (n % 3 == 2).then(|| back.clone()),
        ..grant_to(*id, 2, two)
    });
    let committed = world.update(next.collect()).await;
    assert_eq!(committed.granted.len(), 6);
    let starts = ids.iter().map(|id| start(*id, 2, now())).collect();
    world.update(starts).await;
    for id in ids {
        let record = world.record(id).await;
        assert_eq!(
            (record.attempt, record.worker, record.status),
            (Attempt(2), Some(two), Status::Running)
        );
    }
}

/// A round that is written again, because its answer was lost, finds what it has written, and what came
/// after it, and changes nothing.
pub async fn a_repeated_round_of_grants_and_starts_changes_nothing(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let (one, two) = (world.worker("one").await, world.worker("two").await);
    let waits = world.insert_queued(&action).await;
    let said = world.insert_granted(&action, one).await;
    let ends = world.insert_granted(&action, one).await;
    let other = world.insert_granted(&action, one).await;
    let batch = Batch {
        inserts: vec![world.granted(&action, one), world.queued(&action)],
        updates: vec![
            grant_to(waits, 1, two),
            start(said, 1, now() - SECOND),
            start(other, 1, now() - SECOND),
        ],
        ends: vec![End {
            ran: Some(Duration::from_millis(20)),
            ..end(ends, Status::Failed)
        }],
        ..world.batch()
    };
    let accepted = batch.inserts[0].id;
    let all = [waits, said, ends, other, accepted];
    let again = async || {
        let mut before = Vec::new();
        for id in all {
            before.push(world.record(id).await);
        }
        let committed = world.commit(&batch).await;
        assert_eq!((committed.granted.len(), committed.ended), (1, 0));
        for record in before {
            assert_eq!(world.record(record.id).await, record);
        }
    };
    let first = world.commit(&batch).await;
    assert_eq!((first.granted.len(), first.ended), (1, 1));
    again().await;

    // What was granted has started by now, and what ran has a later attempt.
    world
        .update(vec![
            start(waits, 1, now()),
            start(accepted, 1, now()),
            revoke(said, 1),
            keeps(other, 1),
        ])
        .await;
    let record = world.record(said).await;
    assert_eq!(attempt_of(&record), (Status::Queued, None, None));
    again().await;
    world.update(vec![grant_to(said, 2, two)]).await;
    again().await;
    let record = world.record(said).await;
    assert_eq!(attempt_of(&record), (Status::Requested, Some(two), None));
}

/// Who does not own the partition any more says nothing of what started there.
pub async fn a_stale_owner_starts_nothing(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(2, "a").await;
    let worker = world.worker("w").await;
    let id = world.insert_granted(&action, worker).await;
    world.lose(2).await;
    let batch = Batch {
        updates: vec![start(id, 1, now())],
        ..world.batch()
    };
    assert_eq!(fenced(store.commit(&batch).await), [2]);
    let record = world.record(id).await;
    assert_eq!(attempt_of(&record), (Status::Requested, Some(worker), None));
}
