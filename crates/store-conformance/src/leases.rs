//! Partition leases: taken, renewed, given up, and taken over when they do not move.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{Epoch, OwnerId, PartitionId};

use super::support::{LONG, PARTITIONS, SHORT, World, eventually, fenced, partitions};
use attune_store::{Lease, ObservedLease, Store, StoreError, TroubleNote};

const P0: PartitionId = PartitionId(0);
const P1: PartitionId = PartitionId(1);
const P2: PartitionId = PartitionId(2);

/// The cluster keeps the number of partitions it was made with.
pub async fn partitions_are_made_once(store: Arc<dyn Store>) {
    assert_eq!(store.leases().await.unwrap(), vec![]);
    store.ensure_partitions(PARTITIONS).await.unwrap();
    store.ensure_partitions(PARTITIONS).await.unwrap();
    let other = store.ensure_partitions(PARTITIONS + 1).await;
    assert!(matches!(other, Err(StoreError::Conflict(_))), "{other:?}");

    let leases = store.leases().await.unwrap();
    let found: Vec<_> = leases.iter().map(|lease| lease.partition).collect();
    assert_eq!(found, partitions());
    for lease in leases {
        assert_eq!((lease.owner, lease.owner_name), (None, None));
        assert_eq!(lease.epoch, Epoch(0));
        assert!(lease.remaining.is_zero());
    }
}

/// An execution id holds its partition in eight bits, and no cluster is without partitions.
pub async fn a_cluster_has_from_1_to_256_partitions(store: Arc<dyn Store>) {
    for count in [0, PartitionId::MAX_COUNT + 1] {
        let refused = store.ensure_partitions(count).await;
        assert!(
            matches!(refused, Err(StoreError::Conflict(_))),
            "{refused:?}"
        );
    }
    store
        .ensure_partitions(PartitionId::MAX_COUNT)
        .await
        .unwrap();
    assert_eq!(store.leases().await.unwrap().len(), 256);
}

/// A partition that is held is refused to everyone else; its holder gets it in a new epoch.
pub async fn a_free_partition_is_taken_once(store: Arc<dyn Store>) {
    store.ensure_partitions(PARTITIONS).await.unwrap();
    let (first, second) = (OwnerId::fresh(), OwnerId::fresh());
    let mut taken = store
        .acquire(first, "one", &[P1, P0, PartitionId(99)], LONG)
        .await
        .unwrap();
    taken.sort_unstable();
    assert_eq!(taken, vec![(P0, Epoch(1)), (P1, Epoch(1))]);
    let again = store.acquire(first, "one", &[P0], LONG).await.unwrap();
    assert_eq!(again, vec![(P0, Epoch(2))]);
    let rest = store
        .acquire(second, "two", &[P0, P1, P2], LONG)
        .await
        .unwrap();
    assert_eq!(rest, vec![(P2, Epoch(1))]);

    let leases = store.leases().await.unwrap();
    let seen: Vec<_> = leases
        .iter()
        .map(|lease| (lease.owner, lease.owner_name.as_deref(), lease.epoch))
        .collect();
    assert_eq!(
        seen,
        vec![
            (Some(first), Some("one"), Epoch(2)),
            (Some(first), Some("one"), Epoch(1)),
            (Some(second), Some("two"), Epoch(1)),
            (None, None, Epoch(0)),
        ]
    );
    assert!(!leases[0].remaining.is_zero() && leases[0].remaining <= LONG);
}

/// An owner that stopped renewing keeps its partition, whatever the store's clock says, until
/// somebody who has watched its lease takes it, in the next epoch.
pub async fn an_expired_lease_changes_hands(store: Arc<dyn Store>) {
    store.ensure_partitions(PARTITIONS).await.unwrap();
    let (first, second) = (OwnerId::fresh(), OwnerId::fresh());
    store.acquire(first, "one", &[P0], SHORT).await.unwrap();
    eventually("the lease expires", || async {
        let lease = store.leases().await.unwrap().remove(0);
        lease.remaining.is_zero().then_some(())
    })
    .await;
    let asked = store.acquire(second, "two", &[P0], LONG).await.unwrap();
    assert_eq!(asked, vec![], "nobody has watched it");
    let observed = observe(&store).await;
    let taken = store
        .acquire_observed(second, "two", &observed[..1], LONG)
        .await
        .unwrap();
    assert_eq!(taken, vec![(P0, Epoch(2))]);
    let renewed = store.renew(first, &[(P0, Epoch(1))], LONG).await.unwrap();
    assert_eq!(renewed, vec![]);
    let lease = store.leases().await.unwrap().remove(0);
    assert_eq!((lease.owner, lease.epoch), (Some(second), Epoch(2)));
}

/// A renewal extends exactly what this owner holds in this epoch.
pub async fn a_renewal_needs_owner_and_epoch(store: Arc<dyn Store>) {
    store.ensure_partitions(PARTITIONS).await.unwrap();
    let (owner, other) = (OwnerId::fresh(), OwnerId::fresh());
    store.acquire(owner, "one", &[P0, P1], LONG).await.unwrap();
    store.acquire(other, "two", &[P2], LONG).await.unwrap();

    let asked = [(P2, Epoch(1)), (P1, Epoch(2)), (P0, Epoch(1))];
    let renewed = store.renew(owner, &asked, LONG * 10).await.unwrap();
    assert_eq!(renewed, vec![P0]);
    let leases = store.leases().await.unwrap();
    assert!(leases[0].remaining > LONG, "the renewal counts from now");
    assert!(leases[1].remaining <= LONG && leases[2].remaining <= LONG);
}

/// Expiry alone takes nothing away: the epoch has not changed, so nobody else has written.
pub async fn an_expired_lease_that_nobody_took_can_be_renewed(store: Arc<dyn Store>) {
    store.ensure_partitions(PARTITIONS).await.unwrap();
    let owner = OwnerId::fresh();
    store.acquire(owner, "one", &[P0], SHORT).await.unwrap();
    eventually("the lease expires", || async {
        let lease = store.leases().await.unwrap().remove(0);
        (lease.owner.is_none() && lease.remaining.is_zero()).then_some(())
    })
    .await;
    let renewed = store.renew(owner, &[(P0, Epoch(1))], LONG).await.unwrap();
    assert_eq!(renewed, vec![P0]);
    let lease = store.leases().await.unwrap().remove(0);
    assert_eq!((lease.owner, lease.epoch), (Some(owner), Epoch(1)));
}

/// Giving up needs owner and epoch, frees the partition at once and fences the giver off.
pub async fn a_lease_given_up_is_free_at_once(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let (owner, second) = (world.owner, OwnerId::fresh());
    store.give_up(owner, &[(P0, Epoch(2))], None).await.unwrap();
    store
        .give_up(second, &[(P0, Epoch(1))], None)
        .await
        .unwrap();
    assert_eq!(store.leases().await.unwrap()[0].owner, Some(owner));

    store.give_up(owner, &[(P0, Epoch(1))], None).await.unwrap();
    let leases = store.leases().await.unwrap();
    assert_eq!((leases[0].owner, leases[0].epoch), (None, Epoch(1)));
    assert!(leases[0].remaining.is_zero());
    assert_eq!(leases[1].owner, Some(owner));
    assert_eq!(fenced(store.commit(&world.batch()).await), vec![0]);

    let taken = store.acquire(second, "two", &[P0], LONG).await.unwrap();
    assert_eq!(taken, vec![(P0, Epoch(2))]);
}

/// What was handed over waits for the one that it was handed to, or for somebody who has watched
/// it lie there.
pub async fn a_handed_over_lease_waits_for_its_new_owner(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let (second, third) = (OwnerId::fresh(), OwnerId::fresh());
    let held = [(P0, Epoch(1)), (P1, Epoch(1))];
    store
        .give_up(world.owner, &held, Some(second))
        .await
        .unwrap();
    let leases = store.leases().await.unwrap();
    assert_eq!(
        (leases[0].owner, leases[0].wanted_owner),
        (None, Some(second))
    );
    for other in [third, world.owner] {
        let taken = store.acquire(other, "other", &[P0, P1], LONG).await;
        assert_eq!(taken.unwrap(), vec![], "it is meant for somebody else");
    }
    let taken = store.acquire(second, "two", &[P0], LONG).await.unwrap();
    assert_eq!(taken, vec![(P0, Epoch(2))]);
    assert_eq!(store.leases().await.unwrap()[0].wanted_owner, None);

    // Who was to have the other one does not come.
    let observed = observe(&store).await;
    let taken = store
        .acquire_observed(third, "three", &observed[1..2], SHORT)
        .await
        .unwrap();
    assert_eq!(taken, vec![(P1, Epoch(2))]);
}

/// What keeps an owner from its work is shown where it owns a partition in the epoch it names, until
/// it takes that back or the partition changes hands; the lease itself does not move.
pub async fn what_an_owner_says_ends_with_its_epoch(store: Arc<dyn Store>) {
    const LASTED: Duration = Duration::from_secs(7);
    let world = World::new(Arc::clone(&store)).await;
    let other = OwnerId::fresh();
    let note = |partition, epoch, words: Option<&str>| TroubleNote {
        partition,
        epoch: Epoch(epoch),
        trouble: words.map(|words| (LASTED, words.to_owned())),
    };
    let shown = async || {
        let leases = store.leases().await.unwrap().into_iter();
        let words = leases.map(|lease| lease.trouble.map(|trouble| trouble.words));
        words.take(3).collect::<Vec<_>>()
    };
    let before = observe(&store).await;
    let foreign = [note(P0, 1, Some("of another"))];
    store.note_trouble(other, &foreign).await.unwrap();
    let notes = [
        note(P1, 1, Some("the disk is \"full\"")),
        note(P0, 2, Some("in another epoch")),
        note(P2, 1, Some("slow")),
    ];
    store.note_trouble(world.owner, &notes).await.unwrap();
    let (full, slow) = ("the disk is \"full\"".to_owned(), "slow".to_owned());
    assert_eq!(shown().await, [None, Some(full), Some(slow.clone())]);
    let (lease, now) = (
        store.leases().await.unwrap().remove(1),
        store.now().await.unwrap(),
    );
    let lasted = (now - lease.trouble.unwrap().since).to_std().unwrap();
    assert!(
        (LASTED..LASTED + LONG / 4).contains(&lasted),
        "{lasted:?} have passed"
    );
    assert_eq!(observe(&store).await, before, "the leases did not move");
    assert_eq!(lease.ttl, LONG);

    // It goes on as long as nobody takes it back; a renewal says nothing about it.
    store.renew(world.owner, &world.held, LONG).await.unwrap();
    let over = [note(P1, 1, None)];
    store.note_trouble(world.owner, &over).await.unwrap();
    assert_eq!(shown().await, [None, None, Some(slow)]);

    // Neither nobody nor the next owner has the troubles of the one before.
    let held = [(P2, Epoch(1))];
    store.give_up(world.owner, &held, None).await.unwrap();
    assert_eq!(shown().await, [None, None, None]);
    store.acquire(other, "two", &[P2], LONG).await.unwrap();
    let late = [note(P2, 1, Some("late"))];
    store.note_trouble(world.owner, &late).await.unwrap();
    assert_eq!(shown().await, [None, None, None]);
}

/// How long a partition has had no owner can be seen.
pub async fn a_free_partition_tells_since_when(store: Arc<dyn Store>) {
    let world = World::with_leases(Arc::clone(&store), SHORT).await;
    store
        .renew(world.owner, &world.held[1..], LONG)
        .await
        .unwrap();
    let leases = eventually("a lease has been over for a while", || async {
        let leases = store.leases().await.unwrap();
        (leases[0].free_for > SHORT).then_some(leases)
    })
    .await;
    assert_eq!(leases[0].owner, None);
    assert!(leases[1].free_for.is_zero() && !leases[1].remaining.is_zero());
    store
        .give_up(world.owner, &world.held[1..2], None)
        .await
        .unwrap();
    let given_up = store.leases().await.unwrap().remove(1);
    assert!(given_up.free_for < leases[0].free_for + LONG / 2);
    assert_eq!((given_up.owner, given_up.remaining.is_zero()), (None, true));
}

/// Who renews its presence learns who else is there; who does not is forgotten.
pub async fn executors_know_who_is_there(store: Arc<dyn Store>) {
    let (first, second, gone) = (OwnerId::fresh(), OwnerId::fresh(), OwnerId::fresh());
    let live = async |executor, name: &str, ttl| {
        let announced = store.renew_executor(executor, name, ttl, false);
        let rows = announced.await.unwrap();
        let mut names: Vec<_> = rows.into_iter().map(|row| row.name).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(store.executors().await.unwrap(), vec![]);
    assert_eq!(live(first, "one", LONG).await, ["one"]);
    assert_eq!(live(gone, "gone", SHORT).await, ["gone", "one"]);
    eventually("the silent one is taken for dead", || async {
        (live(second, "two", LONG).await == ["one", "two"]).then_some(())
    })
    .await;

    let rows = store.executors().await.unwrap();
    let seen: Vec<_> = rows
        .iter()
        .map(|row| (row.executor, row.name.as_str(), row.remaining.is_zero()))
        .collect();
    let expected = [
        (gone, "gone", true),
        (first, "one", false),
        (second, "two", false),
    ];
    assert_eq!(seen, expected);
    assert!(rows[1].remaining <= LONG);

    // It only was slow. And a name may change.
    assert_eq!(live(gone, "back", LONG).await, ["back", "one", "two"]);
    store.retire_executor(first).await.unwrap();
    store.retire_executor(OwnerId::fresh()).await.unwrap();
    assert_eq!(live(second, "two", LONG).await, ["back", "two"]);
    assert_eq!(store.executors().await.unwrap().len(), 2);
}

/// However many ask at once, each partition has one owner.
pub async fn racing_owners_share_the_partitions(store: Arc<dyn Store>) {
    store.ensure_partitions(16).await.unwrap();
    let all: Vec<_> = (0..16).map(PartitionId).collect();
    let racers: Vec<_> = (0..4)
        .map(|n| {
            let (store, mut wanted) = (Arc::clone(&store), all.clone());
            wanted.rotate_left(n * 4);
            tokio::spawn(async move {
                let owner = OwnerId::fresh();
                store.acquire(owner, "racer", &wanted, LONG).await.unwrap()
            })
        })
        .collect();
    let mut taken = Vec::new();
    for racer in racers {
        taken.extend(racer.await.unwrap());
    }
    taken.sort_unstable();
    let expected: Vec<_> = all.into_iter().map(|place| (place, Epoch(1))).collect();
    assert_eq!(taken, expected);
}

/// Whatever the store's clock says, a lease that has not moved since it was observed can be taken,
/// once; one that was renewed, given up or taken meanwhile cannot.
pub async fn a_lease_is_taken_as_it_was_observed(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let observed = observe(&store).await;
    let held = |partition: u16| {
        let mut held = world.held.iter().copied();
        held.find(|(id, _)| *id == PartitionId(partition)).unwrap()
    };
    let renewed = store.renew(world.owner, &[held(1)], LONG).await.unwrap();
    assert_eq!(renewed, [P1]);
    store.give_up(world.owner, &[held(2)], None).await.unwrap();
    let other = OwnerId::fresh();
    let taken = store
        .acquire_observed(other, "two", &observed[..3], LONG)
        .await
        .unwrap();
    assert_eq!(taken, [(P0, Epoch(2))]);
    let again = store.acquire_observed(other, "two", &observed, LONG).await;
    assert_eq!(again.unwrap(), [(PartitionId(3), Epoch(2))]);
    let nothing = store.acquire_observed(other, "two", &[], LONG).await;
    assert_eq!(nothing.unwrap(), vec![]);

    let now = store.leases().await.unwrap();
    assert_eq!((now[0].owner, now[0].holder), (Some(other), Some(other)));
    assert_eq!((now[1].holder, now[2].holder), (Some(world.owner), None));
    assert_eq!(now[0].ttl, LONG);
    assert_eq!(now[2].ttl, std::time::Duration::ZERO);
    for (lease, before) in now.iter().zip(&observed) {
        assert!(lease.renewals > before.renewals, "{lease:?}");
    }
    // The owner that was replaced writes nothing any more.
    let batch = attune_store::Batch {
        fences: vec![held(0)],
        ..attune_store::Batch::new(world.owner)
    };
    assert_eq!(fenced(store.commit(&batch).await), [0]);
}

/// Of watchers that have all seen the same, each partition goes to one.
pub async fn racing_watchers_share_the_partitions(store: Arc<dyn Store>) {
    let _world = World::new(Arc::clone(&store)).await;
    let observed = observe(&store).await;
    let racers: Vec<_> = (0..4)
        .map(|n| {
            let (store, mut observed) = (Arc::clone(&store), observed.clone());
            observed.rotate_left(n);
            tokio::spawn(async move {
                store
                    .acquire_observed(OwnerId::fresh(), "racer", &observed, LONG)
                    .await
                    .unwrap()
            })
        })
        .collect();
    let mut all = Vec::new();
    for racer in racers {
        all.extend(racer.await.unwrap());
    }
    all.sort_unstable();
    let expected: Vec<_> = partitions().into_iter().map(|p| (p, Epoch(2))).collect();
    assert_eq!(all, expected);
}

/// An executor says whether it can reach the bus, each time anew.
pub async fn an_executor_says_that_it_is_cut_off(store: Arc<dyn Store>) {
    let (one, other) = (OwnerId::fresh(), OwnerId::fresh());
    for cut_off in [false, true, false] {
        for (executor, name, says) in [(one, "one", cut_off), (other, "other", false)] {
            let announced = store.renew_executor(executor, name, LONG, says);
            let mut rows = announced.await.unwrap();
            rows.retain(|row| row.executor == executor);
            assert_eq!(rows[0].cut_off, says, "{name}");
        }
        let rows = store.executors().await.unwrap();
        let said = rows.iter().map(|row| (row.name.as_str(), row.cut_off));
        let said: Vec<_> = said.collect();
        assert_eq!(said, [("one", cut_off), ("other", false)]);
    }
}

/// A lease that has run out by the store's clock still names who holds it.
pub async fn an_expired_lease_names_its_holder(store: Arc<dyn Store>) {
    let world = World::with_leases(Arc::clone(&store), SHORT).await;
    let lease = eventually("the lease expires", || async {
        let lease = store.leases().await.unwrap().remove(0);
        lease.remaining.is_zero().then_some(lease)
    })
    .await;
    assert_eq!((lease.owner, lease.holder), (None, Some(world.owner)));
    assert_eq!(lease.ttl, SHORT);
    let executor = OwnerId::fresh();
    let announce = async || {
        let announced = store.renew_executor(executor, "one", SHORT, false);
        announced.await.unwrap()
    };
    let first = announce().await;
    announce().await;
    let rows = store.executors().await.unwrap();
    assert!(rows[0].renewals > first[0].renewals, "{rows:?}");
}

/// The store's clock is the one that its rows are written by, and goes on.
pub async fn the_clock_of_the_store_is_told(store: Arc<dyn Store>) {
    let world = World::new(Arc::clone(&store)).await;
    let action = world.action(0, "a").await;
    let before = store.now().await.unwrap();
    let id = world.insert_queued(&action).await;
    let created = world.record(id).await.created;
    assert!(before <= created && created <= store.now().await.unwrap());
    eventually("the clock goes on", || async {
        (store.now().await.unwrap() > created).then_some(())
    })
    .await;
}

async fn observe(store: &Arc<dyn Store>) -> Vec<ObservedLease> {
    let leases = store.leases().await.unwrap();
    leases.iter().map(Lease::observed).collect()
}
