//! The fence under real concurrency: who waited for a takeover must see it.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{OwnerId, PartitionId, WorkerId};
use attune_store::{
    Batch, CommitError, PartitionStore as _, StoreError, TroubleNote, WorkerLease, WorkerStore as _,
};
use sqlx::Row as _;

use crate::support::{TestDb, eventually, grant, on_fresh_db, succeeded};

/// A commit that waits behind a takeover finds the new epoch and writes nothing; a takeover
/// that waits behind a commit finds all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_waited_for_a_takeover_is_fenced_off() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let ids = owner.insert(1).await;
        let place = owner.action.partition;

        // A takeover that has changed the row and not committed yet.
        let mut takeover = db.sql.begin().await.unwrap();
        sqlx::query("UPDATE attune.partition_lease SET epoch = epoch + 1, owner = $1 WHERE partition = $2")
            .bind(OwnerId::fresh().0)
            .bind(i32::from(place.0))
            .execute(&mut *takeover)
            .await
            .unwrap();
        let batch = Batch {
            inserts: vec![owner.queued()],
            updates: vec![grant(ids[0])],
            ..owner.batch()
        };
        let store = db.store.clone();
        let commit = tokio::spawn(async move { store.commit(&batch).await });
        eventually("the commit waits for the lease row", || async {
            let waiting = db
                .count("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'attune commit' AND datname = current_database()")
                .await;
            (waiting == 1).then_some(())
        })
        .await;
        assert!(!commit.is_finished());
        takeover.commit().await.unwrap();
        match commit.await.unwrap() {
            Err(CommitError::Fenced(missing)) => assert_eq!(missing, vec![place]),
            other => panic!("the fence let it through: {other:?}"),
        }
        let rows = owner.store.load_partition(place, None, 10).await.unwrap().rows;
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].status, attune_core::Status::Queued);
    })
    .await;
}

/// How many statements of the store wait for a lock.
async fn waiting(db: &TestDb) -> i64 {
    db.count(
        "SELECT count(*) FROM pg_stat_activity
         WHERE wait_event_type = 'Lock' AND application_name LIKE 'attune%'
           AND datname = current_database()",
    )
    .await
}

/// A commit that takes long has its lease rows locked all the time: renewals pass it, takeovers leave
/// it alone until it has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_commit_keeps_takeovers_away_and_no_renewal() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let ids = owner.insert(1).await;
        let place = owner.action.partition;
        let ttl = Duration::from_secs(600);

        // Somebody has a row that the commit wants to change.
        let mut slow = db.sql.begin().await.unwrap();
        sqlx::query("SELECT FROM attune.execution_active WHERE id = $1 FOR UPDATE")
            .bind(ids[0].0)
            .execute(&mut *slow)
            .await
            .unwrap();
        let batch = Batch {
            updates: vec![grant(ids[0])],
            ..owner.batch()
        };
        let store = db.store.clone();
        let commit = tokio::spawn(async move { store.commit(&batch).await });
        eventually("the commit waits", || async {
            (waiting(&db).await == 1).then_some(())
        })
        .await;

        for _ in 0..3 {
            let renewed = owner.store.renew(owner.id, &owner.fences, ttl).await;
            assert_eq!(renewed.unwrap().len(), 4);
        }
        let observed = [db.store.leases().await.unwrap()[usize::from(place.0)].observed()];
        let (store, rival) = (db.store.clone(), OwnerId::fresh());
        let take = async || {
            let taken = store.acquire_observed(rival, "rival", &observed, ttl);
            taken.await.unwrap().len()
        };
        assert_eq!(take().await, 0);
        let again = db.store.acquire(owner.id, "owner", &[place], ttl).await;
        assert_eq!(again.unwrap(), []);

        slow.rollback().await.unwrap();
        assert_eq!(commit.await.unwrap().unwrap().granted.len(), 1);
        assert_eq!(take().await, 1);
        match owner.store.commit(&owner.batch()).await {
            Err(CommitError::Fenced(missing)) => assert_eq!(missing, vec![place]),
            other => panic!("the fence let it through: {other:?}"),
        }
    })
    .await;
}

/// Somebody who has locked one lease row holds up that partition, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_lease_row_holds_up_no_other() {
    on_fresh_db(|db| async move {
        let owner = db.owner().await;
        let ttl = Duration::from_secs(600);
        let before = db.store.leases().await.unwrap();
        let held = before.iter().filter(|lease| lease.holder == Some(owner.id));
        let held: Vec<_> = held.collect();
        let locked = held[0].partition;
        let mut lock = db.sql.begin().await.unwrap();
        sqlx::query("SELECT FROM attune.partition_lease WHERE partition = $1 FOR UPDATE")
            .bind(i32::from(locked.0))
            .execute(&mut *lock)
            .await
            .unwrap();

        let mut renewed = owner
            .store
            .renew(owner.id, &owner.fences, ttl)
            .await
            .unwrap();
        renewed.sort_unstable();
        let mut all: Vec<PartitionId> = owner.fences.iter().map(|(it, _)| *it).collect();
        all.sort_unstable();
        assert_eq!(
            renewed, all,
            "as far as can be seen it still is the owner's"
        );
        let after = db.store.leases().await.unwrap();
        for (before, after) in before.iter().zip(&after) {
            let moved = i64::from(before.holder == Some(owner.id) && before.partition != locked);
            assert_eq!(
                after.renewals,
                before.renewals + moved,
                "{}",
                after.partition
            );
        }

        // What is to be shown of it is not lost: it is named.
        let notes: Vec<TroubleNote> = owner
            .fences
            .iter()
            .map(|(partition, epoch)| TroubleNote {
                partition: *partition,
                epoch: *epoch,
                trouble: Some((Duration::from_secs(7), "slow".to_owned())),
            })
            .collect();
        let passed_over = owner.store.note_trouble(owner.id, &notes).await.unwrap();
        assert_eq!(passed_over, [locked]);
        let shown = db.store.leases().await.unwrap().into_iter();
        let shown = shown.filter(|lease| lease.trouble.is_some());
        assert_eq!(shown.count(), owner.fences.len() - 1);

        let observed: Vec<_> = after.iter().map(attune_store::Lease::observed).collect();
        let rival = OwnerId::fresh();
        let taken = db
            .store
            .acquire_observed(rival, "rival", &observed, ttl)
            .await;
        let taken: Vec<PartitionId> = taken.unwrap().into_iter().map(|(it, _)| it).collect();
        assert_eq!(taken.len(), observed.len() - 1);
        assert!(!taken.contains(&locked), "{taken:?}");
        lock.rollback().await.unwrap();
    })
    .await;
}

/// Likewise the row of a silent worker: the others' leases end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_worker_row_holds_up_no_other() {
    on_fresh_db(|db| async move {
        for name in ["one", "other"] {
            let lease = WorkerLease {
                worker: WorkerId::fresh(),
                name: name.to_owned(),
                pool: "default".to_owned(),
                slots: 1,
                draining: false,
                ttl: Duration::from_secs(600),
                broker_user: None,
                principal: None,
            };
            db.store.renew_worker(&lease).await.unwrap();
        }
        let mut lock = db.sql.begin().await.unwrap();
        sqlx::query("SELECT FROM attune.worker_lease WHERE name = 'one' FOR UPDATE")
            .execute(&mut *lock)
            .await
            .unwrap();
        let ends = db.store.worker_ends().await.unwrap();
        let seen: Vec<_> = ends.iter().map(|end| (end.worker, end.renewals)).collect();
        assert_eq!(db.store.end_workers(&seen).await.unwrap().len(), 1);
        lock.rollback().await.unwrap();
        assert_eq!(db.store.end_workers(&seen).await.unwrap().len(), 2);
    })
    .await;
}

/// A commit that began before, and comes to a row that was renewed and then taken meanwhile, follows
/// it to its newest version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_before_a_takeover_does_not_hide_it() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let new = owner.queued();
        let batch = Batch {
            inserts: vec![new],
            ..owner.batch()
        };
        let ttl = Duration::from_secs(600);
        let (first, last) = (owner.fences[0], owner.fences[3]);
        assert!(first.0 < last.0, "rows are locked in this order");

        // The commit sees everything as it is now, and waits at its first row.
        let mut barrier = db.sql.begin().await.unwrap();
        sqlx::query("SELECT FROM attune.partition_lease WHERE partition = $1 FOR UPDATE")
            .bind(i32::from(first.0.0))
            .execute(&mut *barrier)
            .await
            .unwrap();
        let store = db.store.clone();
        let commit = tokio::spawn(async move { store.commit(&batch).await });
        eventually("the commit waits", || async {
            (waiting(&db).await == 1).then_some(())
        })
        .await;

        let renewed = owner.store.renew(owner.id, &[last], ttl).await.unwrap();
        assert_eq!(renewed, vec![last.0]);
        let observed = [db.store.leases().await.unwrap()[usize::from(last.0.0)].observed()];
        let rival = OwnerId::fresh();
        let taken = db.store.acquire_observed(rival, "rival", &observed, ttl);
        assert_eq!(taken.await.unwrap().len(), 1);
        barrier.rollback().await.unwrap();
        match commit.await.unwrap() {
            Err(CommitError::Fenced(missing)) => assert_eq!(missing, vec![last.0]),
            other => panic!("the fence let it through: {other:?}"),
        }
        let written = db
            .count("SELECT count(*) FROM attune.execution_active")
            .await;
        assert_eq!(written, 0);
    })
    .await;
}

/// What a batch writes without a fence is a mistake of the caller, and is refused.
#[tokio::test]
async fn a_write_without_its_fence_is_refused() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        let ids = owner.insert(1).await;
        let place = owner.action.partition;
        let mut others = owner.batch();
        others.fences.retain(|(partition, _)| *partition != place);
        let insert = Batch {
            inserts: vec![owner.queued()],
            ..others.clone()
        };
        let update = Batch {
            updates: vec![grant(ids[0])],
            ..others.clone()
        };
        let end = Batch {
            ends: vec![succeeded(ids[0])],
            ..others
        };
        for batch in [insert, update, end] {
            let error = db.store.commit(&batch).await.unwrap_err();
            assert!(
                matches!(error, CommitError::Store(StoreError::Conflict(_))),
                "{error:?}"
            );
        }
        let rows = owner
            .store
            .load_partition(place, None, 10)
            .await
            .unwrap()
            .rows;
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].status, attune_core::Status::Queued);
    })
    .await;
}

/// Owners that take a partition from each other again and again, while both write all the time,
/// never write in each other's epoch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rivals_never_write_in_the_same_epoch() {
    on_fresh_db(|db| async move {
        const WRITES: usize = 100;
        let owner = db.owner().await;
        let (action, place) = (owner.action.clone(), owner.action.partition);
        db.store
            .give_up(owner.id, &owner.fences, None)
            .await
            .unwrap();
        let rivals: Vec<_> = (0..3)
            .map(|_| {
                let (store, action) = (db.store.clone(), action.clone());
                tokio::spawn(async move { rival(&store, &action, place, WRITES).await })
            })
            .collect();
        let (mut written, mut fenced) = (Vec::new(), 0);
        for one in rivals {
            let (ids, misses) = one.await.unwrap();
            written.extend(ids);
            fenced += misses;
        }
        assert!(
            fenced > 0,
            "nobody was ever fenced off; the test shows nothing"
        );
        // Whatever was confirmed is there, and nothing else is: a row that a fenced commit left
        // behind would be one more.
        written.sort_unstable();
        let rows = sqlx::query("SELECT id FROM attune.execution_active ORDER BY id")
            .fetch_all(&db.sql)
            .await
            .unwrap();
        let stored: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        assert_eq!(stored, written);
    })
    .await;
}

/// Takes the partition whenever it can, as one that has watched for long enough, and writes until
/// it has written `writes` batches. Returns what was confirmed and how often it was fenced off.
async fn rival(
    store: &attune_store_postgres::PostgresStore,
    action: &attune_core::Action,
    place: PartitionId,
    writes: usize,
) -> (Vec<i64>, usize) {
    use attune_core::{Attempt, ExecutionId, RequestId, Seq, Status, Submission};
    let me = OwnerId::fresh();
    let (mut ids, mut misses, mut held) = (Vec::new(), 0, None);
    let mut n = 0;
    while ids.len() < writes {
        let Some(epoch) = held else {
            let leases = store.leases().await.unwrap();
            let observed = leases[usize::from(place.0)].observed();
            let ttl = Duration::from_secs(600);
            let taken = store.acquire_observed(me, "rival", &[observed], ttl).await;
            let taken = taken.unwrap();
            held = taken.first().map(|(_, epoch)| *epoch);
            tokio::task::yield_now().await;
            continue;
        };
        n += 1;
        let id = ExecutionId::new(place, Seq::new(epoch, n));
        let new = attune_store::NewExecution {
            id,
            action_id: action.id,
            request_id: RequestId::fresh(),
            digest: 0,
            submission: Arc::new(Submission::new(action.spec.action_ref.as_str())),
            status: Status::Queued,
            attempt: Attempt(0),
            grant_no: None,
            worker: None,
            demand: None,
            asker: None,
            cancel_requested: false,
        };
        let batch = Batch {
            fences: vec![(place, epoch)],
            inserts: vec![new],
            ..Batch::new(me)
        };
        match store.commit(&batch).await {
            Ok(_) => ids.push(id.0),
            Err(CommitError::Fenced(missing)) => {
                assert_eq!(missing, vec![place]);
                misses += 1;
                held = None;
            }
            Err(CommitError::Store(error)) => panic!("{error}"),
        }
    }
    (ids, misses)
}
