//! Faults that last: of the store, of clocks, of clients.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures_util::FutureExt as _;
use rand::Rng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::actions::{Action, DELAYED};
use super::nemesis::{Fault, INSIST, Lane, Rig, pass};
use super::servers::Server;
use super::{http, probe};

/// By how much a clock is set.
const STEP_SECONDS: i64 = 7200;
/// How often a partition may be loaded while rows are refused: once for that, and for executors
/// that are killed or stopped meanwhile.
const EPOCHS: i32 = 20;
/// How many hundreds of executions are asked for before a clock is set.
const BURSTS: usize = 6;
/// How many connections do nothing, and how many send, or read, as slowly as can be.
const IDLE: usize = 500;
const SLOW: usize = 50;

/// A fault whose work is the async function `$work`.
macro_rules! fault {
    ($lane:ident, $name:literal, $how:literal, $heal:literal, $work:ident) => {
        Fault {
            name: $name,
            how: $how,
            heal: $heal,
            lane: Lane::$lane,
            weight: 2,
            work: |rig, random, fault| $work(rig, random, fault).boxed(),
        }
    };
}

pub(crate) const FAULTS: &[Fault] = &[
    fault!(
        Servers,
        "pg-refuse",
        "rows of executions are refused (disk full) for 20 to 60 s, leases are not",
        "they are taken again",
        pg_refuse
    ),
    fault!(
        Servers,
        "pg-beside",
        "dead letters and entries of the audit log are refused for 10 to 30 s",
        "they are taken again",
        pg_beside
    ),
    fault!(
        Servers,
        "pg-lease-row",
        "the lease of one partition cannot be written for 10 to 30 s",
        "it can again",
        pg_lease_row
    ),
    fault!(
        Servers,
        "pg-away",
        "PostgreSQL is killed and away for 40 s",
        "started again",
        pg_away
    ),
    fault!(
        Clocks,
        "clock-postgres",
        "PostgreSQL's clock is set forward and back by two hours, for 3 to 10 s each",
        "set right",
        clock
    ),
    fault!(
        Clocks,
        "clock-executor",
        "an executor's clock is set forward and back by two hours, for 3 to 10 s each",
        "set right",
        clock
    ),
    fault!(
        Clocks,
        "clock-worker",
        "a worker's clock is set forward and back by two hours, for 3 to 10 s each",
        "set right",
        clock
    ),
    fault!(
        Messages,
        "delayed",
        "executions that are not to start before 2 to 12 s have gone",
        "nothing to heal",
        delayed
    ),
    fault!(
        Messages,
        "slow-clients",
        "hundreds of connections to the API idle, send or read one byte at a time",
        "closed",
        slow_clients
    ),
];

/// What a full disk says, for the rows of executions alone.
const REFUSING: &str = "
    CREATE OR REPLACE FUNCTION public.chaos_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'could not extend file: No space left on device'
            USING ERRCODE = '53100';
    END $$;";
const REFUSE: &str = "
    CREATE TRIGGER chaos_refuse BEFORE INSERT OR UPDATE OR DELETE ON attune.execution_active
        FOR EACH ROW EXECUTE FUNCTION public.chaos_refuse();
    CREATE TRIGGER chaos_refuse BEFORE INSERT OR UPDATE OR DELETE ON attune.execution_history
        FOR EACH ROW EXECUTE FUNCTION public.chaos_refuse();";
const TAKE: &str = "
    DROP TRIGGER IF EXISTS chaos_refuse ON attune.execution_active;
    DROP TRIGGER IF EXISTS chaos_refuse ON attune.execution_history;";
const REFUSE_BESIDE: &str = "
    CREATE TRIGGER chaos_refuse BEFORE INSERT ON attune.dead_letter
        FOR EACH ROW EXECUTE FUNCTION public.chaos_refuse();
    CREATE TRIGGER chaos_refuse BEFORE INSERT ON attune.audit_log
        FOR EACH ROW EXECUTE FUNCTION public.chaos_refuse();";
const TAKE_BESIDE: &str = "
    DROP TRIGGER IF EXISTS chaos_refuse ON attune.dead_letter;
    DROP TRIGGER IF EXISTS chaos_refuse ON attune.audit_log;";
const REFUSE_LEASE: &str = "
    CREATE TRIGGER chaos_refuse BEFORE UPDATE ON attune.partition_lease
        FOR EACH ROW WHEN (OLD.partition = 3) EXECUTE FUNCTION public.chaos_refuse();";
const TAKE_LEASE: &str = "DROP TRIGGER IF EXISTS chaos_refuse ON attune.partition_lease;";

async fn change(rig: &Rig, statements: &'static str) -> anyhow::Result<()> {
    let mut connection = rig.servers.connect().await?;
    let text = format!("BEGIN; SET LOCAL lock_timeout = '3s'; {REFUSING} {statements} COMMIT;");
    sqlx::raw_sql(sqlx::AssertSqlSafe(text))
        .execute(&mut connection)
        .await?;
    Ok(())
}

async fn pg_refuse(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let rows = ("the rows of executions", REFUSE, TAKE);
    refuse(rig, random, fault, rows, 20_000..60_000).await
}

async fn pg_beside(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let rows = ("dead letters and the audit log", REFUSE_BESIDE, TAKE_BESIDE);
    refuse(rig, random, fault, rows, 10_000..30_000).await
}

async fn pg_lease_row(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let rows = ("the lease of partition 3", REFUSE_LEASE, TAKE_LEASE);
    refuse(rig, random, fault, rows, 10_000..30_000).await
}

/// Rows by their name, how they are refused and how they are taken again; for a time in milliseconds.
async fn refuse(
    rig: &Rig,
    random: &mut StdRng,
    fault: &Fault,
    (rows, refuse, take): (&'static str, &'static str, &'static str),
    time: Range<u64>,
) -> anyhow::Result<bool> {
    if let Err(error) = change(rig, refuse).await {
        rig.say.line(&format!("{}: not now: {error:#}", fault.name));
        return Ok(false);
    }
    let begun = rig.begin(fault, rows)?;
    let before = epochs(rig).await?;
    pass(random, time).await;
    let after = epochs(rig).await?;
    let healing = Instant::now();
    while let Err(error) = change(rig, take).await {
        ensure!(healing.elapsed() < INSIST, "rows stay refused: {error:#}");
        tokio::time::sleep(Duration::from_millis(200)).await; // poll
    }
    let rises = before
        .iter()
        .zip(&after)
        .map(|(before, after)| after - before);
    if let Some(most) = rises.max().filter(|most| *most > EPOCHS) {
        let text = format!(
            "I6: in one {}, a partition was loaded {most} times",
            fault.name
        );
        rig.say.line(&text);
        rig.fleet.surprises.lock().await.push(text);
    }
    begun.end()
}

/// The epoch of each partition.
async fn epochs(rig: &Rig) -> anyhow::Result<Vec<i32>> {
    let mut connection = rig.servers.connect().await?;
    let epochs = "SELECT epoch::integer FROM attune.partition_lease ORDER BY partition";
    Ok(sqlx::query_scalar(epochs)
        .fetch_all(&mut connection)
        .await?)
}

async fn pg_away(rig: &Rig, _: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let begun = rig.begin(fault, "postgres")?;
    rig.servers.kill(Server::Postgres).await?;
    tokio::time::sleep(Duration::from_secs(40)).await;
    rig.servers.start(Server::Postgres).await?;
    begun.end()
}

/// Clocks that can be set: a file for each process, which libfaketime reads. Monotonic clocks
/// stay as they are, `CLOCK_BOOTTIME` too.
#[derive(Debug, Clone)]
pub struct Clocks {
    folder: PathBuf,
    library: PathBuf,
}

impl Clocks {
    /// Clocks that go right, until one is set.
    ///
    /// # Errors
    /// When libfaketime is not there, or the folder cannot be made.
    pub fn new(folder: PathBuf) -> anyhow::Result<Self> {
        let library = library().context(
            "the faults of clocks need libfaketime: `scripts/services install libfaketime`",
        )?;
        std::fs::create_dir_all(&folder)?;
        Ok(Self { folder, library })
    }

    /// The variables with which a process goes by the clock of this name.
    ///
    /// # Errors
    /// When the clock cannot be written.
    pub fn variables(&self, name: &str) -> anyhow::Result<Vec<(String, String)>> {
        self.set(name, 0)?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let variables = [
            ("LD_PRELOAD", text(&self.library)),
            ("FAKETIME_TIMESTAMP_FILE", text(&self.folder.join(name))),
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        let owned = variables.map(|(key, value)| (key.to_owned(), value));
        Ok(owned.into())
    }

    /// Sets a clock so many seconds apart from the right time.
    ///
    /// # Errors
    /// When the clock cannot be written.
    pub fn set(&self, name: &str, seconds: i64) -> anyhow::Result<()> {
        let path = self.folder.join(name);
        // In one step: a file that is read while it is written would be another time.
        let fresh = path.with_extension("new");
        std::fs::write(&fresh, format!("{seconds:+}\n"))?;
        Ok(std::fs::rename(fresh, path)?)
    }
}

/// Where Debian keeps libfaketime for programs with threads: below a folder of the architecture.
fn library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten();
    let mut all = folders.map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"));
    all.find(|path| path.exists())
}

async fn clock(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let Some(clocks) = &rig.clocks else {
        return Ok(false);
    };
    let name = match fault.name {
        "clock-postgres" => "postgres".to_owned(),
        "clock-executor" => format!("executor-{}", random.random_range(1..=3)),
        _ => format!("worker-{}", random.random_range(1..=4)),
    };
    let mut steps = [STEP_SECONDS, -STEP_SECONDS];
    steps.shuffle(random);
    let begun = rig.begin(fault, &format!("{name} {:+} s, {:+} s", steps[0], steps[1]))?;
    for step in steps {
        burst(rig, random).await?;
        clocks.set(&name, step)?;
        pass(random, 3_000..10_000).await;
    }
    clocks.set(&name, 0)?;
    begun.end()
}

/// Asks for more than can run at once, of many actions, so that some wait everywhere.
async fn burst(rig: &Rig, random: &mut StdRng) -> anyhow::Result<()> {
    let api = rig.shared.api.clone();
    for _ in 0..BURSTS {
        let submissions: Vec<Value> = (0..100)
            .map(|_| {
                let action = Action::pick(&rig.shared.actions, random);
                action.submission(Uuid::now_v7(), random)
            })
            .collect();
        for submission in &submissions {
            rig.shared.ledger.invoke(submission)?;
        }
        http::ask(&rig.shared, &api, &submissions, true, None).await?;
    }
    Ok(())
}

async fn delayed(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let action = rig.shared.action(DELAYED)?;
    let begun = rig.begin(fault, DELAYED)?;
    let mut submissions = Vec::new();
    for _ in 0..10 {
        let mut submission = action.submission(Uuid::now_v7(), random);
        let delay = Duration::from_millis(random.random_range(2_000..12_000));
        let due = chrono::Utc::now() + delay;
        submission["not_before"] = due.to_rfc3339().into();
        rig.shared.ledger.invoke_delayed(&submission, delay)?;
        submissions.push(submission);
    }
    let api = rig.shared.api.clone();
    http::ask(&rig.shared, &api, &submissions, true, None).await?;
    begun.end()
}

async fn slow_clients(rig: &Rig, random: &mut StdRng, fault: &Fault) -> anyhow::Result<bool> {
    let base = rig.shared.api.base();
    let address = base.rsplit('/').next().unwrap_or(base).to_owned();
    let begun = rig.begin(fault, &format!("{IDLE} idle, {} slow", 2 * SLOW))?;
    let mut clients = JoinSet::new();
    for number in 0..IDLE + 2 * SLOW {
        let address = address.clone();
        clients.spawn(async move {
            let stream = TcpStream::connect(&address).await?;
            if number < IDLE {
                idle(stream).await
            } else if number < IDLE + SLOW {
                write_slowly(stream).await
            } else {
                read_slowly(stream).await
            }
        });
    }
    pass(random, 5_000..8_000).await;
    probe::goes_on(rig, random, fault).await?;
    clients.shutdown().await;
    begun.end()
}

async fn idle(mut stream: TcpStream) -> anyhow::Result<()> {
    let read = stream.read(&mut [0; 1]).await?;
    ensure!(read == 0, "nothing was asked");
    Ok(())
}

async fn write_slowly(mut stream: TcpStream) -> anyhow::Result<()> {
    let head = b"POST /api/v1/executions HTTP/1.1\r\nhost: chaos\r\ncontent-length: 100000\r\n\r\n";
    stream.write_all(head).await?;
    loop {
        stream.write_all(b" ").await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn read_slowly(mut stream: TcpStream) -> anyhow::Result<()> {
    let ask = b"GET /api/v1/executions?limit=1000 HTTP/1.1\r\nhost: chaos\r\n\r\n";
    for _ in 0..20 {
        stream.write_all(ask).await?;
    }
    loop {
        stream.read_exact(&mut [0; 1]).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
