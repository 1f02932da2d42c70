//! Attune, an execution queue: the roles, the demo, the benchmark and the client commands.

mod bench;
mod check_history;
mod cli;
mod client;
mod demo;
mod parts;
mod roles;

use std::process::ExitCode;

use anyhow::Context as _;
use attune_config::{Loaded, Loader};
use attune_runtime::{Shutdown, telemetry};
use clap::Parser as _;

use crate::cli::{Cli, Command, ConfigCommand, GuardArguments};
use crate::roles::Role;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Command::Guard(guarding) = &cli.command {
        return guard(&cli, guarding);
    }
    // Two providers in one program would make every TLS connection panic: name ours first.
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        eprintln!("attune: another TLS provider was installed first; going on with it");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("attune: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(cli)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!(
                "attune: {}",
                attune_config::redact_urls(&format!("{error:#}"))
            );
            ExitCode::FAILURE
        }
    }
}

/// Without a runtime of threads: it only waits, and there is one for each worker.
fn guard(cli: &Cli, guarding: &GuardArguments) -> ExitCode {
    let guarded = load(cli, false).and_then(|loaded| {
        let log = &loaded.settings.log;
        telemetry::init(&log.level, log.format)?;
        Ok(attune_worker::guard::run(guarding.kills_worker)?)
    });
    match guarded {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attune: guard: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let embedded = matches!(cli.command, Command::Standalone | Command::Demo(_));
    match cli.command {
        Command::DemoProgram(program) => return demo::program::run(&program),
        Command::CheckHistory(arguments) => return Ok(check_history::run(&arguments)),
        Command::Client(command) => return client::run(command).await,
        _ => {}
    }
    let loaded = load(&cli, embedded)?;
    let settings = &loaded.settings;
    let quiet = matches!(cli.command, Command::Demo(_) | Command::Bench(_));
    let level = if quiet && !was_set(&loaded, "log.level") {
        "warn"
    } else {
        &settings.log.level
    };
    telemetry::init(level, settings.log.format)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    match cli.command {
        Command::Executor => roles::serve(settings, &[Role::Executor]).await,
        Command::CompletionListener => roles::serve(settings, &[Role::CompletionListener]).await,
        Command::Stats => roles::serve(settings, &[Role::Stats]).await,
        Command::Api => roles::serve(settings, &[Role::Api]).await,
        Command::Worker => roles::serve(settings, &[Role::Worker]).await,
        Command::Standalone => roles::serve(settings, &Role::ALL).await,
        Command::Migrate => {
            let shutdown = Shutdown::new();
            shutdown.listen_for_signals()?;
            let store = parts::store(settings, "migrate", &shutdown).await?;
            store
                .migrate()
                .await
                .context("the schema could not be brought up to date")?;
            // Here and not in a role, so that it is done once and before anything starts.
            roles::apply_core_pack(store.as_ref(), settings)
                .await
                .context("the core actions could not be applied")?;
            store.close().await;
            println!("the schema is up to date");
            Ok(ExitCode::SUCCESS)
        }
        Command::Demo(ref arguments) => demo::run(settings, arguments).await,
        Command::Bench(ref arguments) => bench::run(settings, arguments).await,
        Command::Config(ConfigCommand::Print { json }) => {
            let format = if json {
                attune_config::PrintFormat::Json
            } else {
                attune_config::PrintFormat::Yaml
            };
            print!("{}", settings.print(format));
            Ok(ExitCode::SUCCESS)
        }
        Command::Config(ConfigCommand::Default) => {
            print!("{}", attune_config::DEFAULT_FILE);
            Ok(ExitCode::SUCCESS)
        }
        Command::Guard(_)
        | Command::DemoProgram(_)
        | Command::CheckHistory(_)
        | Command::Client(_) => {
            unreachable!("handled above")
        }
    }
}

fn load(cli: &Cli, embedded: bool) -> anyhow::Result<Loaded> {
    let mut loader = Loader::new().environment(std::env::vars_os());
    if embedded {
        loader = loader.command_defaults([("wiring", "embedded")]);
    }
    let flags = cli
        .set
        .iter()
        .map(|(key, value)| (key.as_str(), value.as_str()));
    Ok(loader.file(cli.config.clone()).flags(flags).load()?)
}

fn was_set(loaded: &Loaded, key: &str) -> bool {
    !matches!(loaded.source(key), attune_config::Source::Default)
}
