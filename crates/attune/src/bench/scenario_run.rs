//! One scenario from start to report.

use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use attune_bench::{Load, LoadOptions, Observed, Report, Scenario, load, read_rows};
use attune_cli::Trust;
use attune_commands::{ClientOptions, CommandClient};
use attune_config::{Settings, Wiring};
use attune_history::Runs;
use attune_record::Recorder;
use attune_store::{Store, StoreError};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::{Instant, sleep};

use super::costs::{Watch, difference};
use super::interrupt::{Interrupt, nothing_fails};
use super::prepare::let_go;
use super::system::System;
use crate::parts;

/// What a phase may take whatever the number of executions.
const BASE: Duration = Duration::from_secs(60);
/// What it may take more for each execution.
const EACH: Duration = Duration::from_millis(20);
/// How often the stats are asked whether everything has ended.
const LOOK: Duration = Duration::from_millis(100);
/// How often the executions themselves are asked, which costs the store more.
const LOOK_HARD: Duration = Duration::from_secs(2);
/// How much longer than a look at the stats took the next one is waited for: with very many queues
/// looking would otherwise be a load of its own.
const REST: u32 = 20;
/// How long reading everything may take.
const READ: Duration = Duration::from_secs(120);
/// What it may take more for each execution.
const READ_EACH: Duration = Duration::from_millis(1);

/// What to measure.
pub(super) struct Plan<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) wiring: Wiring,
    pub(super) workers: u16,
    pub(super) executors: u16,
    /// Ask by an API, and whom to believe there; not given: ask the owners themselves.
    pub(super) through_api: Option<&'a Trust>,
    /// Keep what the system leaves.
    pub(super) keep: bool,
    /// Show no progress.
    pub(super) quiet: bool,
}

/// Starts a system, puts the load on it, stops it, takes it away, and reports.
pub(super) async fn measure(
    settings: &Settings,
    plan: &Plan<'_>,
    interrupt: &Interrupt,
) -> anyhow::Result<Report> {
    let mut system = System::new(settings, plan)?;
    let measured = on(&mut system, plan, interrupt).await;
    if measured.is_err() && !interrupt.stop.is_cancelled() {
        let logs = system.logs();
        if !logs.is_empty() {
            eprintln!("attune: what the processes wrote last:\n{logs}");
        }
    }
    system.clean(plan.keep, interrupt).await;
    measured
}

async fn on(system: &mut System, plan: &Plan<'_>, interrupt: &Interrupt) -> anyhow::Result<Report> {
    let scenario = plan.scenario;
    system.start(scenario, interrupt).await?;
    let (store, bus) = system.ports()?;
    let read = READ + times(READ_EACH, scenario.executions);
    let watch = Watch::begin(system).await?;
    let progress = Progress::new(scenario, plan.quiet)?;

    let limit = load_limit(scenario);
    let partitions = system.partitions();
    let api = match plan.through_api {
        Some(trust) => Some(system.through_api(trust).await?),
        None => None,
    };
    let loading = async {
        let client = CommandClient::start(bus, ClientOptions::new(partitions)).await?;
        let load = match &api {
            Some(api) => submit(api, scenario, interrupt, &progress).await,
            None => submit(&client, scenario, interrupt, &progress).await,
        };
        Ok((client, load))
    };
    let what = format!("answers to {} requests", scenario.executions);
    let (client, load) = interrupt
        .phase(&what, limit, system.failure(), loading)
        .await?;

    let going = let_go(store.as_ref(), &client, scenario, partitions);
    interrupt
        .phase("the queues to go", BASE, system.failure(), going)
        .await?;
    drop(client);
    let accepted = load.accepted().count();
    // It ends by itself, because what has not ended by then is a finding and no failure.
    let limit = BASE + times(EACH, accepted);
    let ending = ended(store.as_ref(), accepted, limit, &progress.bar);
    let what = "the ends of the executions";
    let late = interrupt
        .phase(what, limit + READ, system.failure(), ending)
        .await?;
    let costing = watch.end(system, store.as_ref());
    let mut costs = interrupt
        .phase("what it has cost", read, nothing_fails(), costing)
        .await?;
    progress.bar.finish_and_clear();

    let mut problems: Vec<String> = late.into_iter().collect();
    problems.extend(system.stop(interrupt).await);
    costs.transactions = difference(costs.transactions, system.transactions().await);
    let reading = read_rows(store.as_ref(), scenario);
    let reading = async { Ok(reading.await?) };
    let rows = interrupt
        .phase("the rows", read, nothing_fails(), reading)
        .await?;
    let history = system.history();
    if plan.keep {
        record(&history, scenario, &load).await?;
    }
    let runs = read_history(history).await?;
    let wiring = match plan.wiring {
        Wiring::Embedded => "embedded",
        Wiring::PostgresRabbitmq => "postgres-rabbitmq",
    };
    let observed = Observed {
        scenario,
        wiring,
        load: &load,
        runs: &runs,
        rows: &rows,
        costs: &costs,
    };
    let mut report = Report::of(&observed);
    report.problems.extend(problems);
    Ok(report)
}

fn times(each: Duration, executions: usize) -> Duration {
    each.saturating_mul(u32::try_from(executions).unwrap_or(u32::MAX))
}

/// How long the requests may take: their schedule, if they have one, and time for the answers.
fn load_limit(scenario: &Scenario) -> Duration {
    let last = scenario.executions.saturating_sub(1);
    BASE + scenario
        .due(last)
        .unwrap_or_else(|| times(EACH, scenario.executions))
        + LoadOptions::default().give_up_after
}

async fn submit(
    way: &impl load::Way,
    scenario: &Scenario,
    interrupt: &Interrupt,
    progress: &Progress,
) -> Load {
    let stop = interrupt.stop.token();
    tokio::select! {
        load = load::run(way, scenario, LoadOptions::default(), stop, &progress.answered) => load,
        never = progress.show_answers() => match never {},
    }
}

/// Waits until nothing waits and nothing runs; says what is left when that takes too long.
async fn ended(
    store: &dyn Store,
    accepted: usize,
    limit: Duration,
    bar: &ProgressBar,
) -> anyhow::Result<Option<String>> {
    let deadline = Instant::now() + limit;
    let mut look_hard_at = Instant::now() + LOOK_HARD;
    bar.set_message("ended");
    loop {
        let began = Instant::now();
        let done = transient_as_none(total_ended(store).await)?.unwrap_or(0);
        let took = began.elapsed();
        bar.set_position(done);
        let now = Instant::now();
        if done >= accepted as u64 || now >= look_hard_at {
            if transient_as_none(parts::has_active(store).await)? == Some(false) {
                return Ok(None);
            }
            look_hard_at = now + LOOK_HARD;
        }
        if now >= deadline {
            let left = (accepted as u64).saturating_sub(done);
            let limit = limit.as_secs();
            return Ok(Some(format!(
                "{left} executions had not ended {limit} s after the load"
            )));
        }
        sleep(LOOK.max(took * REST)).await;
    }
}

/// A store that cannot answer right now is asked again.
fn transient_as_none<T>(answer: Result<T, StoreError>) -> anyhow::Result<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_transient() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// How many executions have ended, by the snapshots of the queues; may lag behind.
async fn total_ended(store: &dyn Store) -> Result<u64, StoreError> {
    let queues = store.list_queue_stats(None, u32::MAX).await?.rows;
    let of = |row: &attune_store::StoredStats| {
        row.stats.total_completed + row.stats.total_cancelled + row.stats.total_expired
    };
    Ok(queues.iter().map(of).sum())
}

/// Adds what the client saw to the history that is kept.
async fn record(dir: &Path, scenario: &Scenario, load: &Load) -> anyhow::Result<()> {
    let (dir, records) = (dir.to_owned(), load.records(scenario).collect::<Vec<_>>());
    let writing = tokio::task::spawn_blocking(move || {
        let recorder = Recorder::create(&dir, "client")?;
        for record in records {
            recorder.record(record);
        }
        recorder.flush()
    });
    writing.await?.context("the client's records")
}

async fn read_history(dir: PathBuf) -> anyhow::Result<Runs> {
    let reading = tokio::task::spawn_blocking(move || Runs::read(&dir));
    reading.await?.context("the workers' records")
}

/// A bar for people; hidden where nobody looks.
struct Progress {
    bar: ProgressBar,
    /// Requests whose outcome is known.
    answered: Arc<AtomicUsize>,
}

impl Progress {
    fn new(scenario: &Scenario, quiet: bool) -> anyhow::Result<Self> {
        let bar = ProgressBar::new(scenario.executions as u64);
        if quiet || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let form = "{prefix:8} {bar:40.cyan/blue} {pos:>6}/{len} {msg}";
        bar.set_style(ProgressStyle::with_template(form)?);
        bar.set_prefix(scenario.name);
        bar.set_message("answered");
        Ok(Self {
            bar,
            answered: Arc::default(),
        })
    }

    async fn show_answers(&self) -> Infallible {
        loop {
            self.bar
                .set_position(self.answered.load(Ordering::Relaxed) as u64);
            sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_has_time_for_its_schedule_and_for_the_answers() {
        let steady = load_limit(&Scenario::steady());
        assert_eq!(steady.as_secs(), 60 + 19 + 60);
        assert_eq!(load_limit(&Scenario::spread()).as_secs(), 60 + 400 + 60);
    }
}
