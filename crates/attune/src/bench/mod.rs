//! `attune bench`: starts a system of its own, puts a known load on it, and judges from what the
//! workers recorded how fast it was and whether it kept its promises.

mod api;
mod costs;
mod daemon;
mod embedded;
mod interrupt;
mod prepare;
mod processes;
mod scenario_run;
mod scrape;
mod system;
mod table;
mod workers;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::bail;
use attune_bench::Scenario;
use attune_cli::Trust;
use attune_config::{Settings, Wiring};
use clap::{Args, ValueEnum};

use crate::bench::interrupt::{Interrupt, Interrupted};

/// Arguments of the benchmark.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// What load to put on the system. Not given: `all`.
    #[arg(value_enum, value_name = "SCENARIO", conflicts_with = "option")]
    word: Option<ScenarioChoice>,
    /// The same as SCENARIO.
    #[arg(id = "option", long = "scenario", value_enum, value_name = "SCENARIO")]
    option: Option<ScenarioChoice>,
    /// On what it runs: one process on SQLite, or separate processes on the PostgreSQL and
    /// RabbitMQ of the settings, in a database and under a prefix of their own. Not given: as
    /// set (`wiring`).
    #[arg(long, value_enum)]
    wiring: Option<WiringChoice>,
    /// How many workers run the executions. Not given: 1 embedded, else 2.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,
    /// How many executors share the partitions; more than one not embedded. Not given: 1.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=8))]
    executors: Option<u16>,
    /// Another number of actions than the scenario has, at most half as many as executions.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    actions: Option<u32>,
    /// Another limit of each action than the scenario has.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: Option<u32>,
    /// How many executions arrive in a second, whatever the answers. Not given: as the scenario says.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Option<u32>,
    /// Another number of executions than the scenario has.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    executions: Option<u32>,
    /// Ask through an API of its own, by HTTP, and not the owners of the partitions: with a key and over TLS where
    /// the settings say so (`api.auth`, `api.tls`). Not embedded.
    #[arg(long)]
    http: bool,
    #[command(flatten)]
    trust: Trust,
    /// Print one JSON object for each scenario, on the last lines, instead of a table.
    #[arg(long)]
    json: bool,
    /// Keep the folder with logs and records, and the database.
    #[arg(long)]
    keep: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ScenarioChoice {
    /// 20,000 executions over 100 actions with limit 10, as fast as they are accepted.
    Spread,
    /// The same with every policy of an action on; what they cost is the difference.
    Policies,
    /// 2,000 executions of one action with limit 1.
    Serial,
    /// 200 executions a second for 20 seconds, whatever the answers.
    Steady,
    /// One action with limits 1, 10 and 100, one after the other.
    Hot,
    /// 100,000 actions with limit 1, two executions of each.
    Keys,
    /// 1,000,000 executions wait before the first may start; then all of them go.
    Backlog,
    /// `spread`, where every tenth completion is sent twice.
    Duplicates,
    /// Work of 50 ms each, limit 40, and workers that run 40 at once.
    Busy,
    /// 1,000 executions at limit 5, then 10,000 at limit 10.
    Seed,
    /// `spread`, `serial` and `steady`, one after the other.
    All,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WiringChoice {
    Embedded,
    PostgresRabbitmq,
}

impl BenchArguments {
    fn scenarios(&self) -> Vec<Scenario> {
        let choice = self.word.or(self.option).unwrap_or(ScenarioChoice::All);
        let scenarios = match choice {
            ScenarioChoice::Spread => vec![Scenario::spread()],
            ScenarioChoice::Policies => vec![Scenario::policies()],
            ScenarioChoice::Serial => vec![Scenario::serial()],
            ScenarioChoice::Steady => vec![Scenario::steady()],
            ScenarioChoice::Hot => Scenario::hot().into(),
            ScenarioChoice::Keys => vec![Scenario::keys()],
            ScenarioChoice::Backlog => vec![Scenario::backlog()],
            ScenarioChoice::Duplicates => vec![Scenario::duplicates()],
            ScenarioChoice::Busy => vec![Scenario::busy()],
            ScenarioChoice::Seed => Scenario::seed().into(),
            ScenarioChoice::All => {
                vec![Scenario::spread(), Scenario::serial(), Scenario::steady()]
            }
        };
        let sized = |mut scenario: Scenario| {
            if let Some(executions) = self.executions {
                scenario = scenario.with_executions(executions as usize);
            }
            if let Some(actions) = self.actions {
                scenario = scenario.with_actions(actions as usize);
            }
            let scenario = match self.limit {
                Some(limit) => scenario.with_limit(limit),
                None => scenario,
            };
            match self.rate {
                Some(per_second) => scenario.with_rate(per_second),
                None => scenario,
            }
        };
        scenarios.into_iter().map(sized).collect()
    }

    fn wiring(&self, settings: &Settings) -> Wiring {
        match self.wiring {
            Some(WiringChoice::Embedded) => Wiring::Embedded,
            Some(WiringChoice::PostgresRabbitmq) => Wiring::PostgresRabbitmq,
            None => settings.wiring,
        }
    }

    fn executors(&self, wiring: Wiring) -> anyhow::Result<u16> {
        let executors = self.executors.unwrap_or(1);
        if executors > 1 && wiring == Wiring::Embedded {
            bail!(
                "--executors {executors}: embedded there is one; `--wiring postgres-rabbitmq` has as many as you say"
            );
        }
        Ok(executors)
    }

    fn workers(&self, wiring: Wiring) -> u16 {
        self.workers
            .unwrap_or(if wiring == Wiring::Embedded { 1 } else { 2 })
    }
}

/// Runs the benchmark; fails when a promise was not kept.
pub(crate) async fn run(
    settings: &Settings,
    arguments: &BenchArguments,
) -> anyhow::Result<ExitCode> {
    let interrupt = Interrupt::listen()?;
    let wiring = arguments.wiring(settings);
    let executors = arguments.executors(wiring)?;
    if arguments.http && wiring == Wiring::Embedded {
        bail!("--http: embedded there is no API; `--wiring postgres-rabbitmq` starts one");
    }
    let mut reports = Vec::new();
    for mut scenario in arguments.scenarios() {
        let workers = arguments.workers(wiring);
        // As many as the workers will have, when they cannot share them evenly.
        let even = |slots: usize| slots.next_multiple_of(usize::from(workers));
        scenario.slots = scenario.slots.map(even);
        let plan = scenario_run::Plan {
            scenario: &scenario,
            wiring,
            workers,
            executors,
            through_api: arguments.http.then_some(&arguments.trust),
            keep: arguments.keep,
            quiet: arguments.json,
        };
        let report = match scenario_run::measure(settings, &plan, &interrupt).await {
            Ok(report) => report,
            Err(error) if error.is::<Interrupted>() => {
                eprintln!("attune: {error}");
                return Ok(ExitCode::from(130));
            }
            Err(error) => return Err(error.context(format!("scenario {}", scenario.name))),
        };
        for problem in report.problems.iter().chain(&report.faults()) {
            eprintln!("attune: {}: {problem}", scenario.name);
        }
        if !report.kept() {
            eprintln!("attune: {}: its figures are no result", scenario.name);
        }
        if arguments.json {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}", serde_json::to_string(&report)?)?;
            out.flush()?;
        }
        reports.push(report);
    }
    if !arguments.json {
        println!("{}", table::render(&reports));
    }
    let kept = reports.iter().all(attune_bench::Report::kept);
    Ok(if kept {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArguments,
    }

    fn parse(line: &str) -> Result<BenchArguments, clap::Error> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Line::try_parse_from(words).map(|line| line.bench)
    }

    #[test]
    fn without_arguments_all_scenarios_run_as_the_settings_say() {
        let arguments = parse("").unwrap();
        let names: Vec<_> = arguments.scenarios().iter().map(|one| one.name).collect();
        assert_eq!(names, ["spread", "serial", "steady"]);
        let settings = Settings::default();
        assert_eq!(arguments.wiring(&settings), settings.wiring);
        assert_eq!(arguments.workers(Wiring::PostgresRabbitmq), 2);
        assert_eq!(arguments.workers(Wiring::Embedded), 1);
    }

    #[test]
    fn arguments_choose() {
        let line =
            "--scenario serial --wiring embedded --workers 3 --executions 50 --actions 5 --limit 7";
        let arguments = parse(line).unwrap();
        let scenarios = arguments.scenarios();
        assert_eq!((scenarios.len(), scenarios[0].name), (1, "serial"));
        let of = &scenarios[0];
        assert_eq!((of.executions, of.actions, of.limit), (50, 5, 7));
        let many = parse("--executors 3").unwrap();
        assert_eq!(many.executors(Wiring::PostgresRabbitmq).unwrap(), 3);
        let error = many.executors(Wiring::Embedded).unwrap_err().to_string();
        assert!(
            error.starts_with("--executors 3: embedded there is one"),
            "{error}"
        );
        assert_eq!(arguments.wiring(&Settings::default()), Wiring::Embedded);
        assert_eq!(arguments.workers(Wiring::Embedded), 3);
    }

    #[test]
    fn a_scenario_is_a_word_or_an_option() {
        for (word, names) in [
            ("hot", &["hot-1", "hot-10", "hot-100"][..]),
            ("seed", &["seed-1000", "seed-10000"]),
            ("keys", &["keys"]),
            ("backlog", &["backlog"]),
            ("duplicates", &["duplicates"]),
            ("busy", &["busy"]),
            ("all", &["spread", "serial", "steady"]),
        ] {
            for line in [word.to_owned(), format!("--scenario {word}")] {
                let scenarios = parse(&line).unwrap().scenarios();
                let found: Vec<_> = scenarios.iter().map(|one| one.name).collect();
                assert_eq!(found, names, "{line}");
            }
        }
        assert!(parse("spread --scenario serial").is_err());
    }

    #[test]
    fn an_unknown_scenario_is_told_which_there_are() {
        for line in ["fast", "--scenario fast"] {
            let error = parse(line).map(|_| ()).unwrap_err().to_string();
            let listed = "spread, policies, serial, steady, hot, keys, backlog, duplicates, busy, \
                          seed, all";
            assert!(
                error.contains("'fast'") && error.contains(listed),
                "{error}"
            );
        }
    }

    #[test]
    fn impossible_numbers_are_refused() {
        for line in [
            "--executions 0",
            "--workers 0",
            "--workers 65",
            "--executors 9",
            "--actions 0",
            "--limit 0",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
