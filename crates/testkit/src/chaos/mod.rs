//! The chaos rig: a whole cluster under load, disturbed by a seeded nemesis, and judged.
//!
//! One run: start servers and daemons, warm up, disturb, heal everything, let what was accepted
//! come to its end, stop, and judge from the records of all sides. Faults and their order follow
//! from the seed; what they hit at which instant does not.

mod actions;
mod amqp;
mod check;
mod daemon_faults;
mod document_faults;
mod fleet;
mod http;
mod lasting_faults;
mod ledger;
mod message_faults;
mod nemesis;
mod notes;
mod probe;
mod program;
mod records;
mod room_faults;
mod security;
mod server_faults;
mod servers;
mod stranger;
mod witness;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use check::Report;
pub use program::program;

use crate::wait_for;
use actions::Action;
use fleet::Fleet;
use http::Shared;
pub use lasting_faults::Clocks;
use ledger::Ledger;
use nemesis::{Fault, Lane, Rig};
use notes::Notes;
use security::Security;
use servers::{Server, Servers};
use stranger::Stranger;
use witness::Witness;

/// Settings under which faults show within seconds.
const SETTINGS: &[(&str, &str)] = &[
    ("cluster.partitions", "8"),
    ("executor.lease.ttl_seconds", "5"),
    ("executor.reconcile.interval_seconds", "2"),
    ("worker.lease.ttl_seconds", "6"),
    ("worker.lease.grace_seconds", "2"),
    ("worker.kill_grace_seconds", "1"),
    ("worker.drain_seconds", "5"),
    ("worker.slots", "32"),
    ("broker.heartbeat_seconds", "5"),
    ("broker.publish_timeout_seconds", "5"),
    ("database.acquire_timeout_seconds", "3"),
    ("database.statement_timeout_seconds", "5"),
    ("api.submit_timeout_seconds", "5"),
    ("log.format", "text"),
];
/// Clients of each kind.
const HTTP_CLIENTS: u32 = 20;
const AMQP_CLIENTS: u32 = 3;
/// The share of the load that comes over AMQP, and how many submissions a message and a request
/// hold on average.
const AMQP_SHARE: f64 = 0.25;
const PER_MESSAGE: f64 = 2.0;
const PER_REQUEST: f64 = 1.75;
/// How long the load runs before the first fault.
const WARM_UP: Duration = Duration::from_secs(8);
/// How long nothing is disturbed before all is stopped, at least: the slots of dead workers, and
/// partitions, must come back within their leases, a grace and 5 s.
const CALM: Duration = Duration::from_secs(15);
/// How long it may take until less is left of what was accepted, once all is healed.
const DRAIN: Duration = Duration::from_secs(120);
/// How long it may take in all.
const LONGEST_DRAIN: Duration = Duration::from_secs(900);

/// What a run shall be.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program under test.
    pub binary: PathBuf,
    /// `scripts/services`.
    pub services: PathBuf,
    /// Where servers and records go; the records of the run before are removed.
    pub folder: PathBuf,
    /// How long to disturb.
    pub time: Duration,
    /// Decides which faults come.
    pub seed: u64,
    /// Names of faults; empty for all.
    pub faults: Vec<String>,
    /// Executions a second.
    pub rate: f64,
    /// Whether everything is on that identifies and protects: keys, TLS, users of messages.
    pub secured: bool,
    /// Whether only the final line goes to stdout.
    pub json: bool,
}

/// Tells a person what goes on.
#[derive(Debug, Clone)]
pub(crate) struct Say {
    since: Instant,
    to_stderr: bool,
}

impl Say {
    pub(crate) fn line(&self, text: &str) {
        let line = format!("{:>7.1} s  {text}", self.since.elapsed().as_secs_f64());
        if self.to_stderr {
            eprintln!("{line}");
        } else {
            println!("{line}");
        }
    }
}

/// The faults that there are: name, how, and how it is healed.
#[must_use]
pub fn fault_table() -> Vec<(&'static str, &'static str, &'static str)> {
    let row = |fault: &Fault| (fault.name, fault.how, fault.heal);
    nemesis::faults().map(row).collect()
}

/// One run of the rig, which ends early when `stop` is cancelled. Everything that it has started
/// is gone when it returns.
///
/// # Errors
/// When the rig itself fails, or was stopped; what it finds is in the report.
pub async fn run(options: &Options, stop: &CancellationToken) -> anyhow::Result<Report> {
    let chosen = choose(&options.faults)?;
    let say = Say {
        since: Instant::now(),
        to_stderr: options.json,
    };
    let folder = options.folder.join("run");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(folder.join("history"))?;
    say.line(&format!(
        "seed {}, records in {}",
        options.seed,
        folder.display()
    ));
    let sets_clocks = chosen.iter().any(|fault| fault.name.starts_with("clock-"));
    let clocks = sets_clocks.then(|| Clocks::new(folder.join("clocks")));
    let clocks = clocks.transpose()?;
    let place = options.folder.join("services");
    let security = match options.secured {
        true => Some(Security::prepare(&folder).await?),
        false => None,
    };
    let servers = Servers::up(&options.services, &place, clocks.as_ref(), security).await?;
    let started = tokio::select! {
        started = Fleet::start(&options.binary, &folder, &servers, clocks.as_ref(), &say) => started,
        () = stop.cancelled() => Err(anyhow::anyhow!("stopped")),
    };
    let fleet = match started {
        Ok(fleet) => fleet,
        Err(error) => {
            servers.down().await?;
            return Err(error);
        }
    };
    let rig = prepare(options, &folder, servers, fleet, clocks, say)?;
    // Dropped half-way when it is stopped; what is left to do then is below.
    let outcome = tokio::select! {
        outcome = go_through(&rig, options, &chosen, &folder) => outcome,
        () = stop.cancelled() => Err(anyhow::anyhow!("stopped")),
    };
    rig.shared.stop.cancel();
    rig.fleet.kill().await;
    rig.servers.down().await?;
    outcome
}

fn choose(names: &[String]) -> anyhow::Result<Vec<&'static Fault>> {
    let all: Vec<_> = nemesis::faults().collect();
    for name in names {
        let known = || {
            all.iter()
                .map(|fault| fault.name)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let is_known = all.iter().any(|fault| fault.name == name);
        ensure!(is_known, "there is no fault {name}; there are: {}", known());
    }
    let is_chosen =
        |fault: &&Fault| names.is_empty() || names.iter().any(|name| name == fault.name);
    Ok(all.into_iter().filter(is_chosen).collect())
}

fn prepare(
    options: &Options,
    folder: &Path,
    servers: Servers,
    fleet: Arc<Fleet>,
    clocks: Option<Clocks>,
    say: Say,
) -> anyhow::Result<Rig> {
    let history = folder.join("history");
    let shared = Arc::new(Shared {
        api: fleet.api.clone(),
        broker_url: servers.broker_url.clone(),
        user: servers.security.as_ref().map(|_| security::USER),
        actions: Action::all(),
        ledger: Ledger::open(&history, servers.security.as_ref().map(|_| security::ASKER))?,
        stop: CancellationToken::new(),
        program: std::env::current_exe()?,
        history: history.clone(),
    });
    let limits: BTreeMap<_, _> = shared
        .actions
        .iter()
        .map(|action| (action.action_ref.clone(), action.policy.limit))
        .collect();
    ensure!(options.rate > 0.0, "the rate must be above 0");
    Ok(Rig {
        stranger: Stranger::new(&servers.broker_url, shared.user),
        notes: Notes::open(&history, "nemesis")?,
        counts: std::sync::Mutex::default(),
        clocks,
        servers_disturbed: std::sync::Mutex::default(),
        limits: limits.into(),
        servers,
        fleet,
        shared,
        say,
    })
}

/// Every phase of a run, once all is started.
async fn go_through(
    rig: &Rig,
    options: &Options,
    chosen: &[&'static Fault],
    folder: &Path,
) -> anyhow::Result<Report> {
    let shared = &rig.shared;
    let api = shared.api.clone();
    api.until_ready().await?;
    for action in &shared.actions {
        wait_for(&action.action_ref, async || {
            let spec = action.spec(&shared.program, &shared.history, action.policy);
            api.apply(&spec).await
        })
        .await?;
    }
    rig.say.line("everything runs; warming up");
    let witnessed = CancellationToken::new();
    let _end = witnessed.clone().drop_guard();
    let witness = Witness::start(&shared.history, witnessed.clone())?;
    let mut random = StdRng::seed_from_u64(options.seed);
    let mut clients = start_clients(shared, options.rate, &mut random);
    tokio::time::sleep(WARM_UP).await;
    let deadline = Instant::now() + options.time;
    tokio::try_join!(
        rig.disturb(Lane::Servers, chosen, random.random(), deadline),
        rig.disturb(Lane::Daemons, chosen, random.random(), deadline),
        rig.disturb(Lane::Messages, chosen, random.random(), deadline),
        rig.disturb(Lane::Clocks, chosen, random.random(), deadline),
        rest(deadline),
    )?;
    rig.say.line("healing");
    heal(rig).await?;
    // From here on everything must come right by itself.
    let healed = json!({"name": "all", "target": "everything", "phase": "end"});
    rig.notes.add("fault", healed)?;
    shared.stop.cancel();
    while let Some(ended) = clients.join_next().await {
        ended?.context("a client of the rig")?;
    }
    let calm = Instant::now() + CALM;
    let drained = drain(rig).await;
    tokio::time::sleep_until(calm).await;
    rig.say.line("stopping");
    let mut problems = rig.fleet.stop().await;
    witnessed.cancel();
    witness.await?.context("the witness")?;
    problems.extend(drained.err().map(|error| format!("{error:#}")));
    problems.extend(rig.fleet.panics()?);
    problems.append(&mut *rig.fleet.surprises.lock().await);
    check::check(rig, options, folder, problems).await
}

/// Nothing, until the faults are over: without faults the load still runs for its time.
async fn rest(deadline: Instant) -> anyhow::Result<()> {
    tokio::time::sleep_until(deadline).await;
    Ok(())
}

fn start_clients(
    shared: &Arc<Shared>,
    rate: f64,
    random: &mut StdRng,
) -> JoinSet<anyhow::Result<()>> {
    let mut clients = JoinSet::new();
    let pace = |count: u32, each: f64, share: f64| {
        Duration::from_secs_f64(f64::from(count) * each / (rate * share))
    };
    let by_http = pace(HTTP_CLIENTS, PER_REQUEST, 1.0 - AMQP_SHARE);
    let by_amqp = pace(AMQP_CLIENTS, PER_MESSAGE, AMQP_SHARE);
    for _ in 0..HTTP_CLIENTS {
        clients.spawn(http::client(Arc::clone(shared), random.random(), by_http));
    }
    for _ in 0..AMQP_CLIENTS {
        clients.spawn(amqp::client(Arc::clone(shared), random.random(), by_amqp));
    }
    clients
}

/// Ends every fault. Each heals itself; this is for what overlapped.
async fn heal(rig: &Rig) -> anyhow::Result<()> {
    rig.fleet.restore_ways();
    rig.servers.start(Server::Postgres).await?;
    rig.servers.start(Server::Rabbitmq).await?;
    Ok(())
}

/// Waits until everything that was accepted has ended and no queue holds anything: as long as there is less
/// of it from time to time, since what waits at a low limit has its turn one after the other.
async fn drain(rig: &Rig) -> anyhow::Result<()> {
    let began = Instant::now();
    let (mut least, mut since) = (i64::MAX, began);
    let queues = check::queues();
    loop {
        let looks = tokio::try_join!(check::open(rig), rig.stranger.depths(&queues));
        let rest = match looks {
            Ok((open, depths)) => {
                let full: Vec<_> = depths.iter().filter(|(_, depth)| *depth > 0).collect();
                if open == 0 && full.is_empty() {
                    let seconds = began.elapsed().as_secs_f64();
                    rig.say.line(&format!("all has ended after {seconds:.1} s"));
                    return Ok(());
                }
                let messages: i64 = full.iter().map(|(_, depth)| i64::from(*depth)).sum();
                let left = open + messages;
                if left < least {
                    (least, since) = (left, Instant::now());
                }
                format!("{open} executions are open, and messages lie in {full:?}")
            }
            Err(error) => format!("{error:#}"),
        };
        if since.elapsed() > DRAIN || began.elapsed() > LONGEST_DRAIN {
            let seconds = began.elapsed().as_secs();
            bail!("I4: after {seconds} s: {rest}");
        }
        tokio::time::sleep(Duration::from_millis(500)).await; // poll
    }
}
