//! The chaos rig as a program; `scripts/chaos` builds and calls it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use attune_testkit::chaos::{self, Options, Report};
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Runs a whole cluster under load, disturbs it, and judges what came of it.
///
/// Exit code 0 when nothing is violated, 1 when something is (with the promise), 2 when the rig
/// itself fails.
#[derive(Debug, Parser)]
#[command(name = "attune-chaos")]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// How long to disturb, in minutes
    #[arg(long, default_value_t = 3.0)]
    minutes: f64,
    /// Which faults come in which order
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only these faults; `list` shows them
    #[arg(long, value_delimiter = ',')]
    faults: Vec<String>,
    /// Executions a second
    #[arg(long, default_value_t = 250.0)]
    rate: f64,
    /// With keys, TLS and named users on all sides
    #[arg(long)]
    secured: bool,
    /// Everything but the final line goes to stderr
    #[arg(long)]
    json: bool,
    /// The program under test
    #[arg(long, env = "ATTUNE_BIN", default_value = "attune")]
    binary: PathBuf,
    /// `scripts/services`
    #[arg(long, default_value = "scripts/services")]
    services: PathBuf,
    /// Where servers and records go
    #[arg(long, default_value = ".services/chaos")]
    folder: PathBuf,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the faults that there are
    List,
    /// What the rig's executions run; it is started by workers
    #[command(hide = true)]
    Program {
        /// The folder of its records
        history: PathBuf,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.command {
        Some(Command::Program { history }) => chaos::program(history).map(|()| ExitCode::SUCCESS),
        Some(Command::List) => {
            for (name, how, heal) in chaos::fault_table() {
                println!("{name:<18} {how}; {heal}");
            }
            Ok(ExitCode::SUCCESS)
        }
        None => disturb(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("chaos: the rig has failed: {error:#}");
        ExitCode::from(2)
    })
}

#[tokio::main]
async fn disturb(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let stop = CancellationToken::new();
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        stopping.cancel();
    });
    let options = Options {
        binary: std::path::absolute(&arguments.binary)?,
        services: std::path::absolute(&arguments.services)?,
        folder: std::path::absolute(&arguments.folder)?,
        time: Duration::from_secs_f64(arguments.minutes * 60.0),
        seed: arguments.seed,
        faults: arguments.faults.clone(),
        rate: arguments.rate,
        secured: arguments.secured,
        json: arguments.json,
    };
    let report = chaos::run(&options, &stop).await?;
    Ok(show(&report, arguments.json))
}

fn show(report: &Report, json: bool) -> ExitCode {
    let mut text = format!("\n{}", report.table);
    for finding in &report.findings {
        text += &format!("FOUND {finding}\n");
    }
    if json {
        eprint!("{text}");
    } else {
        print!("{text}");
    }
    println!("{}", report.json);
    if report.is_clean() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
