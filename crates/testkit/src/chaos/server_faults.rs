//! Faults of PostgreSQL and RabbitMQ.

use std::time::Duration;

use futures_util::FutureExt as _;
use rand::Rng as _;
use rand::rngs::StdRng;
use rustix::process::{Pid, Signal, kill_process};
use sqlx::Connection as _;

use super::nemesis::{Fault, Lane, Rig, pass};
use super::servers::Server;

/// A fault whose work is the async function `$work`.
macro_rules! fault {
    ($name:literal, $how:literal, $heal:literal, $weight:literal, $work:ident) => {
        Fault {
            name: $name,
            how: $how,
            heal: $heal,
            lane: Lane::Servers,
            weight: $weight,
            work: |rig, random, fault| $work(rig, random, fault).boxed(),
        }
    };
}

pub(crate) const FAULTS: &[Fault] = &[
    fault!(
        "pg-restart",
        "immediate shutdown, recovery at the start",
        "started again after 0 to 3 s",
        4,
        pg_restart
    ),
    fault!(
        "pg-terminate",
        "pg_terminate_backend for a share of the connections",
        "connections are made anew",
        4,
        pg_terminate
    ),
    fault!(
        "pg-pause",
        "SIGSTOP to half of the backends for 3 to 8 s",
        "SIGCONT",
        2,
        pg_pause
    ),
    fault!(
        "pg-lock",
        "a transaction holds lease rows for 3 to 9 s",
        "rolled back",
        3,
        pg_lock
    ),
    fault!(
        "pg-rows",
        "a transaction holds up to three rows of executions that are dispatched for 5 to 15 s",
        "rolled back",
        3,
        pg_rows
    ),
    fault!(
        "pg-read-only",
        "connections that begin may only read, and a share of the others ends, for 4 to 15 s",
        "connections that begin may write",
        2,
        pg_read_only
    ),
    fault!(
        "amqp-stop-app",
        "rabbitmqctl stop_app for 1 to 4 s",
        "start_app",
        2,
        amqp_stop_app
    ),
    fault!(
        "amqp-kill",
        "kill -9 of the broker",
        "started again after 0 to 2 s",
        2,
        amqp_kill
    ),
    fault!(
        "amqp-pause",
        "SIGSTOP to the broker for 2 to 12 s",
        "SIGCONT",
        2,
        amqp_pause
    ),
    fault!(
        "amqp-close",
        "rabbitmqctl closes some or all connections",
        "connections are made anew",
        4,
        amqp_close
    ),
    fault!(
        "amqp-alarm",
        "memory alarm for 2 to 8 s: publishing blocks",
        "the watermark is set back",
        2,
        amqp_alarm
    ),
];

async fn pg_restart(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let begun = rig.begin(fault, "postgres")?;
    rig.servers.kill(Server::Postgres).await?;
    pass(random, 0..3000).await;
    rig.servers.start(Server::Postgres).await?;
    begun.end()
}

async fn pg_terminate(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let share = [0.1, 0.5, 1.0][random.random_range(0..3)];
    let mut connection = rig.servers.connect().await?;
    let begun = rig.begin(fault, &format!("{:.0} % of the backends", share * 100.0))?;
    for _ in 0..random.random_range(1..4) {
        sqlx::query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < $1",
        )
        .bind(share)
        .execute(&mut connection)
        .await?;
        pass(random, 100..1500).await;
    }
    connection.close().await?;
    begun.end()
}

async fn pg_pause(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let mut connection = rig.servers.connect().await?;
    let ids: Vec<i32> = sqlx::query_scalar(
        "SELECT pid FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.5",
    )
    .fetch_all(&mut connection)
    .await?;
    let begun = rig.begin(fault, &format!("{} backends", ids.len()))?;
    let signal = |signal: Signal| {
        for id in ids.iter().filter_map(|id| Pid::from_raw(*id)) {
            // It may have ended since; the server gives no id to anybody else.
            let _gone = kill_process(id, signal);
        }
    };
    signal(Signal::STOP);
    pass(random, 3000..8000).await;
    signal(Signal::CONT);
    connection.close().await?;
    begun.end()
}

async fn pg_lock(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let (target, statement) = if random.random_bool(0.7) {
        (
            "a third of the partition leases",
            "SELECT 1 FROM attune.partition_lease WHERE partition % 3 = $1 ORDER BY partition
             FOR UPDATE",
        )
    } else {
        (
            "a third of the worker leases",
            "SELECT 1 FROM attune.worker_lease WHERE abs(hashtext(worker::text)) % 3 = $1
             ORDER BY worker FOR UPDATE",
        )
    };
    let mut connection = rig.servers.connect().await?;
    let mut transaction = connection.begin().await?;
    sqlx::query("SET LOCAL lock_timeout = '5s'")
        .execute(&mut *transaction)
        .await?;
    let begun = rig.begin(fault, target)?;
    let locked = sqlx::query(statement)
        .bind(random.random_range(0..3))
        .execute(&mut *transaction)
        .await;
    if locked.is_ok() {
        pass(random, 3000..9000).await;
    }
    transaction.rollback().await?;
    connection.close().await?;
    begun.end()
}

async fn pg_rows(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let mut connection = rig.servers.connect().await?;
    let mut transaction = connection.begin().await?;
    let rows = sqlx::query(
        "SELECT 1 FROM attune.execution_active WHERE status = 'requested' ORDER BY random() LIMIT $1
         FOR UPDATE SKIP LOCKED",
    )
    .bind(random.random_range(1_i64..=3))
    .fetch_all(&mut *transaction)
    .await;
    let locked = rows.map_or(0, |rows| rows.len());
    if locked == 0 {
        transaction.rollback().await?;
        return Ok(false);
    }
    let begun = rig.begin(fault, &format!("{locked} executions"))?;
    pass(random, 5_000..15_000).await;
    transaction.rollback().await?;
    connection.close().await?;
    begun.end()
}

/// What a failover to a standby looks like from here, and a database that has run out of room for its
/// transaction numbers.
async fn pg_read_only(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let mut connection = rig.servers.connect().await?;
    let database: String = sqlx::query_scalar("SELECT quote_ident(current_database())")
        .fetch_one(&mut connection)
        .await?;
    let begun = rig.begin(fault, "a share of the connections")?;
    let set = format!("ALTER DATABASE {database} SET default_transaction_read_only = on");
    sqlx::raw_sql(sqlx::AssertSqlSafe(set))
        .execute(&mut connection)
        .await?;
    sqlx::query(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < $1",
    )
    .bind([0.3, 0.7, 1.0][random.random_range(0..3)])
    .execute(&mut connection)
    .await?;
    pass(random, 4_000..15_000).await;
    let reset = format!(
        "SET default_transaction_read_only = off;
         ALTER DATABASE {database} RESET default_transaction_read_only"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(reset))
        .execute(&mut connection)
        .await?;
    connection.close().await?;
    begun.end()
}

async fn amqp_stop_app(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let begun = rig.begin(fault, "rabbitmq")?;
    rig.servers.rabbitmqctl(&["stop_app"]).await?;
    pass(random, 1000..4000).await;
    rig.servers.rabbitmqctl(&["start_app"]).await?;
    begun.end()
}

async fn amqp_kill(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let begun = rig.begin(fault, "rabbitmq")?;
    rig.servers.kill(Server::Rabbitmq).await?;
    pass(random, 0..2000).await;
    rig.servers.start(Server::Rabbitmq).await?;
    begun.end()
}

async fn amqp_pause(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let begun = rig.begin(fault, "rabbitmq")?;
    rig.servers.signal(Server::Rabbitmq, Signal::STOP)?;
    pass(random, 2000..12_000).await;
    rig.servers.signal(Server::Rabbitmq, Signal::CONT)?;
    begun.end()
}

async fn amqp_close(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let limit = [2, 8, 1000][random.random_range(0..3)].to_string();
    let begun = rig.begin(fault, &format!("up to {limit} connections"))?;
    let vhost = super::servers::NAME;
    rig.servers
        .rabbitmqctl(&[
            "close_all_connections",
            "--vhost",
            vhost,
            "--limit",
            &limit,
            "chaos",
        ])
        .await?;
    begun.end()
}

async fn amqp_alarm(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let begun = rig.begin(fault, "rabbitmq")?;
    let watermark = "set_vm_memory_high_watermark";
    rig.servers.rabbitmqctl(&[watermark, "0.00001"]).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    pass(random, 1000..7000).await;
    rig.servers
        .rabbitmqctl(&[watermark, "absolute", "1GB"])
        .await?;
    begun.end()
}
