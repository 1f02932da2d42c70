//! Requests by the day: no index spans the days, and still a request has one execution.

use std::sync::Arc;
use std::time::Duration;

use attune_core::{ExecutionId, Outcome, RequestId, Status};
use attune_store::{
    Batch, ExecutionStore as _, HistoryRetention, KnownRequest, PartitionStore as _,
    RecordRetention, Store as _,
};
use sqlx::{AssertSqlSafe, PgPool};

use attune_store_postgres::PostgresStore;

use crate::support::{TestDb, on_fresh_db, succeeded};
use crate::upkeep::days_of;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn keep_requests(requests: Duration) -> HistoryRetention {
    HistoryRetention {
        history: 30 * DAY,
        requests,
        records: RecordRetention::USUAL,
    }
}

/// What the table looks like when it has been in use for some days: one partition for each, where
/// the migration leaves one for all days up to today.
const DAYS_OF_USE: &str = "
DO $$
DECLARE
    today date := (now() AT TIME ZONE 'UTC')::date;
    day date;
BEGIN
    EXECUTE format('DROP TABLE attune.%I', 'request_' || to_char(today, 'YYYYMMDD'));
    PERFORM attune.make_days('request', 3);
    FOR day IN SELECT today - n FROM generate_series(1, 2) AS n LOOP
        EXECUTE format(
            'CREATE TABLE attune.%I PARTITION OF attune.request (PRIMARY KEY (request_id))
             FOR VALUES FROM (%L) TO (%L)', 'request_' || to_char(day, 'YYYYMMDD'),
            day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
    END LOOP;
END;
$$";

async fn run(db: &TestDb, statements: &str) {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned()))
        .execute(&db.sql)
        .await
        .unwrap();
}

/// Lets all requests there are have come a day earlier.
async fn a_day_goes_by(db: &TestDb) {
    run(
        db,
        "UPDATE attune.request SET created = created - interval '1 day'",
    )
    .await;
}

async fn known(db: &TestDb, request: RequestId) -> Option<KnownRequest> {
    let mut found = db.store.look_up(&[request], &[]).await.unwrap().requests;
    assert!(found.len() <= 1, "each request once: {found:?}");
    found.pop()
}

/// Around midnight a request may get a row on each side. The older one counts, active or ended,
/// until its day is dropped; dropping it touches no other day.
#[tokio::test]
async fn the_oldest_row_of_a_request_counts_until_its_day_goes() {
    on_fresh_db(|db| async move {
        run(&db, DAYS_OF_USE).await;
        let mut owner = db.owner().await;
        let (first, mut second) = (owner.queued(), owner.queued());
        second.request_id = first.request_id;
        let (request, ids) = (first.request_id, [first.id, second.id]);
        for (new, next) in [(first, true), (second, false)] {
            let batch = Batch {
                inserts: vec![new],
                ..owner.batch()
            };
            db.store.commit(&batch).await.unwrap();
            if next {
                // Two, since no day goes of which a part is younger than a day.
                a_day_goes_by(&db).await;
                a_day_goes_by(&db).await;
            }
        }
        assert_eq!(db.count("SELECT count(*) FROM attune.request").await, 2);
        let tells = async |id: ExecutionId, status: Status| {
            let known = known(&db, request).await.unwrap();
            assert_eq!((known.execution_id, known.status), (id, status));
        };
        tells(ids[0], Status::Queued).await;
        owner.end(&[ids[0]]).await;
        tells(ids[0], Status::Succeeded).await;
        owner.end(&[ids[1]]).await;
        tells(ids[0], Status::Succeeded).await;

        let before = days_of(&db, "request").await;
        assert_eq!(before.len(), 6, "{before:?}");
        db.store
            .maintain_history(keep_requests(Duration::ZERO))
            .await
            .unwrap();
        assert_eq!(days_of(&db, "request").await, before[1..]);
        tells(ids[1], Status::Succeeded).await;
    })
    .await;
}

/// A day is dropped when all of it is older than asked.
#[tokio::test]
async fn a_day_is_kept_while_a_request_of_it_may_be_asked_for() {
    on_fresh_db(|db| async move {
        run(&db, DAYS_OF_USE).await;
        let mut owner = db.owner().await;
        let mut requests = Vec::new();
        for _ in 0..3 {
            a_day_goes_by(&db).await;
            let new = owner.queued();
            requests.push(new.request_id);
            let batch = Batch {
                inserts: vec![new],
                ..owner.batch()
            };
            db.store.commit(&batch).await.unwrap();
        }
        // Older than any day there is.
        run(
            &db,
            "INSERT INTO attune.request VALUES (gen_random_uuid(), 1, 1, now() - interval '9 days')",
        )
        .await;
        db.store.maintain_history(keep_requests(DAY)).await.unwrap();
        let left = [
            known(&db, requests[0]).await.is_some(),
            known(&db, requests[1]).await.is_some(),
            known(&db, requests[2]).await.is_some(),
        ];
        assert_eq!(left, [false, true, true]);
        assert_eq!(db.count("SELECT count(*) FROM attune.request").await, 2);
    })
    .await;
}

/// An owner whose commit was refused writes the same batch again, maybe on the next day.
#[tokio::test]
async fn a_batch_that_is_written_again_on_the_next_day_changes_nothing() {
    on_fresh_db(|db| async move {
        run(&db, DAYS_OF_USE).await;
        let mut owner = db.owner().await;
        let (waits, ended) = (owner.queued(), owner.queued());
        let requests = [waits.request_id, ended.request_id];
        let batch = Batch {
            inserts: vec![waits],
            instant: vec![(ended, Arc::new(Outcome::of(Status::Rejected, None)))],
            ..owner.batch()
        };
        db.store.commit(&batch).await.unwrap();
        let first = [known(&db, requests[0]).await, known(&db, requests[1]).await];
        a_day_goes_by(&db).await;
        db.store.commit(&batch).await.unwrap();
        let again = [known(&db, requests[0]).await, known(&db, requests[1]).await];
        assert_eq!(again, first);
        assert!(first.iter().all(Option::is_some));
        assert_eq!(db.count("SELECT count(*) FROM attune.execution").await, 2);
    })
    .await;
}

/// What came before its day was made moves there.
#[tokio::test]
async fn requests_that_no_day_took_move_to_theirs() {
    on_fresh_db(|db| async move {
        run(&db, DAYS_OF_USE).await;
        for day in days_of(&db, "request").await {
            run(&db, &format!("DROP TABLE attune.{day}")).await;
        }
        let mut owner = db.owner().await;
        owner.insert(5).await;
        let caught = "SELECT count(*) FROM attune.request_default";
        assert_eq!(db.count(caught).await, 5);
        db.store.maintain_history(keep_requests(DAY)).await.unwrap();
        assert_eq!(days_of(&db, "request").await.len(), 4);
        assert_eq!(db.count(caught).await, 0);
        assert_eq!(db.count("SELECT count(*) FROM attune.request").await, 5);
    })
    .await;
}

/// The schema of the release before requests were kept by the day.
const BEFORE: [&str; 9] = [
    include_str!("../../../../migrations/postgres/0001_initial.sql"),
    include_str!("../../../../migrations/postgres/0002_ownership.sql"),
    include_str!("../../../../migrations/postgres/0003_operators.sql"),
    include_str!("../../../../migrations/postgres/0004_dead_letters.sql"),
    include_str!("../../../../migrations/postgres/0005_observed_leases.sql"),
    include_str!("../../../../migrations/postgres/0006_slots.sql"),
    include_str!("../../../../migrations/postgres/0007_upkeep.sql"),
    include_str!("../../../../migrations/postgres/0008_additive_requeue_of.sql"),
    include_str!("../../../../migrations/postgres/0009_no_slots.sql"),
];

/// `attune migrate` keeps what is stored: requests of yesterday, of today, and of a day to come,
/// which a clock left there that was set back.
#[tokio::test]
async fn migrating_keeps_what_is_stored() {
    on_fresh_db(|db| async move {
        // What an earlier release has made belongs to the user whose `attune migrate` made it.
        let user = PgPool::connect(&db.url).await.unwrap();
        let run = async |statements: &'static str| {
            sqlx::raw_sql(statements).execute(&user).await.unwrap();
        };
        run(
            "CREATE TABLE public.applied AS
                 SELECT * FROM attune.schema_migration WHERE version < 10;
             DROP SCHEMA attune CASCADE",
        )
        .await;
        run("CREATE SCHEMA attune").await;
        for migration in BEFORE {
            run(migration).await;
        }
        run(
            "CREATE TABLE attune.schema_migration AS TABLE public.applied;
             SELECT attune.make_history_days(7);
             INSERT INTO attune.request
             SELECT ('00000000-0000-0000-0000-00000000000' || n)::uuid, n, n, at
             FROM (VALUES (1, now() - interval '20 hours'), (2, now()),
                          (3, now() + interval '20 hours')) AS v (n, at);
             INSERT INTO attune.execution_active
                 (id, action, created, request_id, attempt, priority, status, action_ref, parameters)
             SELECT execution_id, 1, created, request_id, 0, 2, 'queued', 'a.b', '{}'
             FROM attune.request",
        )
        .await;
        db.store.migrate().await.unwrap();
        db.store.check().await.unwrap();
        db.store.migrate().await.unwrap();
        for n in 1..=3 {
            let request = RequestId(uuid::Uuid::from_u128(n));
            let found = known(&db, request).await.unwrap();
            assert_eq!(i128::from(found.execution_id.0), n.cast_signed());
        }
        assert_eq!(days_of(&db, "request").await.len(), 4);
        let caught = "SELECT count(*) FROM attune.request_default";
        assert_eq!(db.count(caught).await, 0);

        // And it works on: today's request is still the only one of its id.
        let mut owner = db.owner().await;
        let mut new = owner.queued();
        new.request_id = RequestId(uuid::Uuid::from_u128(2));
        let batch = Batch {
            inserts: vec![new],
            ..owner.batch()
        };
        db.store.commit(&batch).await.unwrap();
        assert_eq!(db.count("SELECT count(*) FROM attune.request").await, 3);
        user.close().await;
    })
    .await;
}

/// A request that was accepted while the server's clock was wrong is known afterwards, and so is one
/// of before while it is wrong, waiting or ended.
#[tokio::test]
async fn requests_are_known_while_and_after_the_clock_was_set() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        for ahead in ["3 days", "40 days", "-3 days", "-40 days"] {
            let stepped = db.with_clock(ahead).await;
            let tells = async |store: &PostgresStore, request: RequestId, status: Status| {
                let found = store.look_up(&[request], &[]).await.unwrap().requests;
                let found: Vec<Status> = found.iter().map(|known| known.status).collect();
                assert_eq!(found, [status], "{ahead}");
            };
            let (before, during) = (owner.queued(), owner.queued());
            let requests = [before.request_id, during.request_id];
            let ids = [before.id, during.id];
            for (store, new) in [(&db.store, before), (&stepped, during)] {
                let batch = Batch {
                    inserts: vec![new],
                    ..owner.batch()
                };
                store.commit(&batch).await.unwrap();
            }
            for request in requests {
                tells(&db.store, request, Status::Queued).await;
                tells(&stepped, request, Status::Queued).await;
            }
            let batch = Batch {
                ends: ids.map(succeeded).into(),
                ..owner.batch()
            };
            stepped.commit(&batch).await.unwrap();
            for request in requests {
                tells(&db.store, request, Status::Succeeded).await;
                tells(&stepped, request, Status::Succeeded).await;
            }
            stepped.close().await;
        }
        // Every row lies in a day around now, so that none of them is dropped too early or kept.
        let strays = "SELECT count(*) FROM attune.execution_history
                      WHERE abs(extract(epoch FROM finished_at - now())) > 3600";
        assert_eq!(db.count(strays).await, 0);
    })
    .await;
}
