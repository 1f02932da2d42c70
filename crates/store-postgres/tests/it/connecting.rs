//! Connecting, checking and migrating: what an operator sees when something is wrong.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use attune_store::{Batch, PartitionStore as _, Store as _, StoreError};
use attune_store_postgres::{PostgresOptions, PostgresStore, through_locks};
use rustix::net::{getpeername, sockopt};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use sqlx::AssertSqlSafe;

use crate::support::{TestDb, chain, eventually, on_fresh_db, server_url};

/// A server that is not there is named, and its password is not.
#[tokio::test]
async fn a_missing_server_is_named() {
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let url = format!("postgres://ada:s3cret@127.0.0.1:{port}/attune");
    let error = PostgresStore::connect(PostgresOptions::new(url))
        .await
        .unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    let text = chain(&error);
    assert!(text.contains(&format!("127.0.0.1:{port}")), "{text}");
    assert!(text.contains("refused"), "{text}");
    assert!(!text.contains("s3cret") && !format!("{error:?}").contains("s3cret"));
}

/// A wrong password and a missing database do not pass by themselves.
#[tokio::test]
async fn what_cannot_work_is_not_tried_again() {
    let server = server_url();
    let wrong_database = {
        let (address, _) = server.rsplit_once('/').unwrap();
        format!("{address}/no_such_database")
    };
    let wrong_password = {
        let (head, tail) = server.split_once('@').unwrap();
        let (user, _) = head.rsplit_once(':').unwrap();
        format!("{user}:wr0ng@{tail}")
    };
    for (url, word) in [
        (wrong_database, "no_such_database"),
        (wrong_password, "password"),
        ("nonsense".to_owned(), "URL"),
    ] {
        let error = PostgresStore::connect(PostgresOptions::new(url))
            .await
            .unwrap_err();
        assert!(matches!(error, StoreError::Statement(_)), "{error:?}");
        let text = chain(&error);
        assert!(text.contains(word), "{text}");
        assert!(!text.contains("wr0ng"), "{text}");
    }
}

/// No connection holds back what it is given to write until the server has confirmed what came before: that takes
/// 40 ms, and with TLS each 16 KiB are written apart.
#[tokio::test]
async fn what_is_written_goes_out_at_once() {
    on_fresh_db(|db| async move {
        let port = url::Url::parse(&server_url())
            .unwrap()
            .port()
            .unwrap_or(5432);
        db.store.check().await.unwrap();
        let sockets: Vec<OwnedFd> = own_sockets()
            .filter(|socket| peer_port(socket) == Some(port))
            .collect();
        assert!(!sockets.is_empty());
        for socket in sockets {
            assert!(sockopt::tcp_nodelay(&socket).unwrap());
        }
    })
    .await;
}

/// A second handle of each socket of this process.
fn own_sockets() -> impl Iterator<Item = OwnedFd> {
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(move |entry| {
            let path = entry.ok()?.path();
            let target = std::fs::read_link(&path).ok()?;
            target.to_str()?.strip_prefix("socket:")?;
            let number = path.file_name()?.to_str()?.parse().ok()?;
            Some(pidfd_getfd(&this, number, PidfdGetfdFlags::empty()).unwrap())
        })
}

fn peer_port(socket: &OwnedFd) -> Option<u16> {
    let peer = getpeername(socket).ok()??;
    Some(SocketAddr::try_from(peer).ok()?.port())
}

/// Several roles may start at once on an empty database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_migrations_agree() {
    on_fresh_db(|db| async move {
        sqlx::query("DROP SCHEMA attune CASCADE")
            .execute(&db.sql)
            .await
            .unwrap();
        let missing = db.store.check().await.unwrap_err();
        assert!(matches!(missing, StoreError::Schema(_)), "{missing:?}");
        assert!(missing.to_string().contains("attune migrate"));
        let used = db.store.leases().await.unwrap_err();
        assert!(matches!(used, StoreError::Schema(_)), "{used:?}");

        let migrations: Vec<_> = (0..4)
            .map(|_| {
                let store = db.store.clone();
                tokio::spawn(async move { store.migrate().await })
            })
            .collect();
        for one in migrations {
            one.await.unwrap().unwrap();
        }
        db.store.check().await.unwrap();
        // A start after the first finds nothing to do.
        db.store.migrate().await.unwrap();
    })
    .await;
}

/// A program that is older than the schema, or newer, says so and touches nothing.
#[tokio::test]
async fn another_schema_is_refused() {
    on_fresh_db(|db| async move {
        sqlx::query(
            "INSERT INTO attune.schema_migration VALUES (999, 'later', now(), true, '', 0)",
        )
        .execute(&db.sql)
        .await
        .unwrap();
        for result in [db.store.check().await, db.store.migrate().await] {
            let error = result.unwrap_err();
            assert!(matches!(error, StoreError::Schema(_)), "{error:?}");
            assert!(error.to_string().contains("999"), "{error}");
        }
        sqlx::query("DELETE FROM attune.schema_migration WHERE version IN (1, 999)")
            .execute(&db.sql)
            .await
            .unwrap();
        let error = db.store.check().await.unwrap_err();
        assert!(error.to_string().contains("is missing"), "{error}");
    })
    .await;
}

/// A newer release whose migrations only add lets programs of this one start, and migrate.
#[tokio::test]
async fn an_additive_migration_of_a_newer_release_is_accepted() {
    on_fresh_db(|db| async move {
        sqlx::query(
            "INSERT INTO attune.schema_migration
             VALUES (999, 'additive_later', now(), true, '', 0)",
        )
        .execute(&db.sql)
        .await
        .unwrap();
        db.store.check().await.unwrap();
        db.store.migrate().await.unwrap();
    })
    .await;
}

/// A migration that meets a lock lets everybody else pass again, tries anew, and gives up with the way out.
#[tokio::test]
async fn a_migration_waits_for_a_lock_no_longer_than_others_can_bear() {
    on_fresh_db(|db| async move {
        let undo = "ALTER TABLE attune.audit_log DROP COLUMN actor_kind, DROP COLUMN key_id,
                        DROP COLUMN source_ip, DROP COLUMN via;
                    DROP TABLE attune.audit_retention;
                    DROP FUNCTION attune.note_start(uuid, text, text, text, text);
                    DELETE FROM attune.schema_migration WHERE version = 40";
        sqlx::raw_sql(undo).execute(&db.sql).await.unwrap();
        let mut dump = db.sql.begin().await.unwrap();
        sqlx::raw_sql("LOCK TABLE attune.audit_log IN ACCESS SHARE MODE")
            .execute(&mut *dump)
            .await
            .unwrap();
        let mut options = PostgresOptions::new(&db.url);
        options.migrate_tries = 1;
        let hasty = PostgresStore::connect(options.clone()).await.unwrap();
        let refused = hasty.migrate().await.unwrap_err().to_string();
        assert!(refused.contains("has met a lock 1 times"), "{refused}");
        assert!(refused.contains("pg_stat_activity"), "{refused}");
        // Whoever comes after it is not held up by it any more.
        assert_eq!(db.count("SELECT count(*) FROM attune.audit_log").await, 0);

        options.migrate_tries = 3;
        let patient = PostgresStore::connect(options).await.unwrap();
        let migrating = tokio::spawn({
            let patient = patient.clone();
            async move { patient.migrate().await }
        });
        until_waits_for_a_lock(&db).await;
        dump.rollback().await.unwrap();
        migrating.await.unwrap().unwrap();
        db.store.check().await.unwrap();
        hasty.close().await;
        patient.close().await;
    })
    .await;
}

/// The other steps of a migration do as the migrations do.
#[tokio::test]
async fn a_step_of_a_migration_waits_for_a_lock_as_the_migrations_do() {
    on_fresh_db(|db| async move {
        let mut holder = db.sql.begin().await.unwrap();
        sqlx::raw_sql("LOCK TABLE attune.audit_retention IN ACCESS EXCLUSIVE MODE")
            .execute(&mut *holder)
            .await
            .unwrap();
        let refused = through_locks(1, || db.store.keep_audit_for(77));
        let refused = refused.await.unwrap_err().to_string();
        assert!(refused.contains("has met a lock 1 times"), "{refused}");
        let (step, ()) = tokio::join!(through_locks(3, || db.store.keep_audit_for(77)), async {
            until_waits_for_a_lock(&db).await;
            // Longer than a statement waits for a lock.
            until_waits_for_none(&db).await;
            holder.rollback().await.unwrap();
        });
        step.unwrap();
        let kept = "SELECT days::bigint FROM attune.audit_retention";
        assert_eq!(db.count(kept).await, 77);
    })
    .await;
}

/// Waits until nobody waits for a table any more.
async fn until_waits_for_none(db: &TestDb) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while db.count(WAITS).await > 0 {
        assert!(std::time::Instant::now() < deadline, "it waits for ever");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await; // poll
    }
}

const WAITS: &str = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'
     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Waits until somebody waits for a table.
async fn until_waits_for_a_lock(db: &TestDb) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while db.count(WAITS).await == 0 {
        assert!(std::time::Instant::now() < deadline, "nobody waits");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await; // poll
    }
}

/// Settings that would break a promise keep every role from starting.
#[tokio::test]
async fn a_database_that_answers_before_it_writes_is_refused() {
    on_fresh_db(|db| async move {
        db.store.check().await.unwrap();
        let name: String = sqlx::query_scalar("SELECT current_database()::text")
            .fetch_one(&db.sql)
            .await
            .unwrap();
        for (value, fits) in [("local", true), ("off", false)] {
            let set = format!("ALTER DATABASE {name} SET synchronous_commit = {value}");
            sqlx::query(sqlx::AssertSqlSafe(set))
                .execute(&db.sql)
                .await
                .unwrap();
            let fresh = PostgresStore::connect(PostgresOptions::new(&db.url)).await;
            let fresh = fresh.unwrap();
            let checked = fresh.check().await;
            fresh.close().await;
            assert_eq!(checked.is_ok(), fits, "{checked:?}");
            let named = |error: StoreError| error.to_string().contains("synchronous_commit is off");
            assert!(checked.map_err(named).err().unwrap_or(true));
        }
    })
    .await;
}

/// The sessions have the bounds that free a stopped client's locks, and the planner settings.
#[tokio::test]
async fn sessions_are_bounded() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        owner.insert(1).await;
        db.store.look_up(&[], &["a.b".to_owned()]).await.unwrap();
        let names: Vec<String> = sqlx::query_scalar(
            "SELECT DISTINCT application_name FROM pg_stat_activity
             WHERE datname = current_database() AND application_name LIKE 'attune %' ORDER BY 1",
        )
        .fetch_all(&db.sql)
        .await
        .unwrap();
        assert_eq!(
            names,
            [
                "attune commit",
                "attune general",
                "attune key",
                "attune lease"
            ]
        );
        // A statement that is cut off by its session's bound counts as unavailable.
        let mut options = PostgresOptions::new(&db.url);
        options.statement_timeout = Duration::from_millis(1);
        let store = PostgresStore::connect(options).await.unwrap();
        let mut blocker = db.sql.begin().await.unwrap();
        sqlx::query("LOCK TABLE attune.execution_active IN ACCESS EXCLUSIVE MODE")
            .execute(&mut *blocker)
            .await
            .unwrap();
        let error = store.load_slots(&[]).await.unwrap_err();
        assert!(error.is_transient(), "{error:?}");
        assert!(chain(&error).contains("statement timeout"), "{error:?}");
        blocker.rollback().await.unwrap();
        store.close().await;
    })
    .await;
}

/// After every connection was cut, the next calls find new ones; a closed store is unavailable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_are_replaced() {
    on_fresh_db(|db| async move {
        let owner = db.owner().await;
        let cut = db
            .count("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'attune %'")
            .await;
        assert!(cut > 0);
        eventually("commits work again", || async {
            match db.store.commit(&owner.batch()).await {
                Ok(_) => Some(()),
                Err(attune_store::CommitError::Store(error)) if error.is_transient() => None,
                Err(error) => panic!("{error:?}"),
            }
        })
        .await;
        db.store.close().await;
        let error = db.store.leases().await.unwrap_err();
        assert!(error.is_transient(), "{error:?}");
    })
    .await;
}

/// A caller that is dropped in the middle leaves no transaction behind: its call is carried out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_callers_leave_nothing_open() {
    on_fresh_db(|db| async move {
        use attune_store::ActionStore as _;
        let mut spec = attune_core::ActionSpec::core_pack().remove(0);
        let applied = db.store.apply_action(&spec, 4, "test").await.unwrap();
        for delay in 0..60_u32 {
            // Each call changes something, and so makes a version.
            spec.policy.concurrency.limit = Some(delay + 1);
            let call = db.store.apply_action(&spec, 4, "test");
            // The caller gives up at some moment, often while BEGIN is under way.
            let patience = Duration::from_micros(25) * delay;
            let _ = tokio::time::timeout(patience, call).await;
        }
        eventually("every call has ended", || async {
            let open = db
                .count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'attune %' AND state <> 'idle'")
                .await;
            (open == 0).then_some(())
        })
        .await;
        let version = db.count("SELECT version FROM attune.action").await;
        let policies = db.count("SELECT count(*) FROM attune.policy").await;
        let expected = applied.action.version + 60;
        assert_eq!((version, policies), (expected, expected));
    })
    .await;
}

/// Sessions that begin while a database takes no writes never take one: they are closed, so that the
/// first call after it takes writes again finds one that does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_may_only_read_is_not_kept() {
    on_fresh_db(|db| async move {
        let mut owner = db.owner().await;
        owner.insert(1).await;
        let name: String = sqlx::query_scalar("SELECT current_database()::text")
            .fetch_one(&db.sql)
            .await
            .unwrap();
        let set = async |how: &str| {
            let sql = format!("ALTER DATABASE {name} {how}");
            let mut connection = db.sql.acquire().await.unwrap();
            sqlx::query(AssertSqlSafe(sql)).execute(&mut *connection).await.unwrap();
        };
        set("SET default_transaction_read_only = on").await;
        db.count("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'attune %'")
            .await;
        let batch = Batch {
            inserts: vec![owner.queued()],
            ..owner.batch()
        };
        // The session that was ended comes first.
        eventually("a session that may only read", async || {
            let refused = db.store.commit(&batch).await.unwrap_err();
            chain(&refused).contains("read-only").then_some(())
        })
        .await;
        // With a setting of its own, this session may write.
        let mut connection = db.sql.acquire().await.unwrap();
        let sql = format!(
            "SET default_transaction_read_only = off; \
             ALTER DATABASE {name} RESET default_transaction_read_only"
        );
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut *connection).await.unwrap();
        // A session that was just made is used for two more seconds.
        eventually("a session that may write", async || {
            db.store.commit(&batch).await.ok()
        })
        .await;
    })
    .await;
}

/// Somebody changes the type of a column beneath statements that were prepared before: each connection
/// fails once at most, and is replaced.
#[tokio::test]
async fn a_statement_that_fits_no_more_is_prepared_again() {
    on_fresh_db(|db| async move {
        let store = &db.store;
        store.ensure_partitions(4).await.unwrap();
        // The pool for leases has two connections.
        for _ in 0..4 {
            let (one, two) = tokio::join!(store.leases(), store.leases());
            one.and(two).unwrap();
        }
        sqlx::raw_sql("ALTER TABLE attune.partition_lease ALTER COLUMN owner_name TYPE varchar")
            .execute(&db.sql)
            .await
            .unwrap();
        let mut failed = 0;
        for _ in 0..4 {
            let (one, two) = tokio::join!(store.leases(), store.leases());
            failed += [one.is_err(), two.is_err()]
                .iter()
                .filter(|it| **it)
                .count();
        }
        assert!((1..=2).contains(&failed), "{failed}");
        assert_eq!(store.leases().await.unwrap().len(), 4);
    })
    .await;
}

/// A connection that nobody has used for a while is asked whether it is sound, and used again: a new one
/// each time would cost the server a process and a password check.
#[tokio::test]
async fn a_connection_that_lay_idle_is_used_again() {
    on_fresh_db(|db| async move {
        const SESSIONS: &str = "SELECT pid FROM pg_stat_activity \
            WHERE datname = current_database() AND application_name LIKE 'attune %' ORDER BY pid";
        const RESTED: &str = "SELECT count(*) FROM pg_stat_activity \
            WHERE datname = current_database() AND application_name LIKE 'attune %' \
            AND (state <> 'idle' OR clock_timestamp() - state_change < interval '2.2 s')";
        let sessions = async || -> Vec<i32> {
            let sessions = sqlx::query_scalar(SESSIONS);
            sessions.fetch_all(&db.sql).await.unwrap()
        };
        let store = &db.store;
        store.ensure_partitions(4).await.unwrap();
        store.leases().await.unwrap();
        eventually("all connections have lain idle", || async {
            (db.count(RESTED).await == 0).then_some(())
        })
        .await;
        // Those that only looked at first, or migrated, have gone by now.
        let before = sessions().await;
        assert!(before.len() >= 2, "{before:?}");
        // One of each pool.
        store.ensure_partitions(4).await.unwrap();
        store.leases().await.unwrap();
        assert_eq!(sessions().await, before);
    })
    .await;
}
