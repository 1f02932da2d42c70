//! `attune demo`: real programs under limits in this process, judged by what the programs
//! themselves wrote down.

mod judge;
pub(crate) mod program;
mod report;

use std::collections::HashMap;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use attune_commands::{ClientOptions, CommandClient};
use attune_config::Settings;
use attune_core::{Action, ActionId, ActionSpec, ExecutionId, Run, Submission};
use attune_runtime::{Health, Metrics, Shutdown};
use attune_store::Store;
use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::parts::{self, Parts};
use crate::roles::{self, ExecutorView, Role};

/// Arguments of the demo.
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Print one JSON object on the last line instead of a table.
    #[arg(long)]
    json: bool,
    /// How many executions to run in all.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(4..=100_000))]
    executions: u32,
}

/// The actions of the demo: their limits, and how many of a hundred executions are theirs.
const ACTIONS: [(&str, u32, u32); 4] = [
    ("demo.one", 1, 15),
    ("demo.two", 2, 20),
    ("demo.five", 5, 25),
    ("demo.twenty", 20, 40),
];
/// The longest the demo may take.
const DEADLINE: Duration = Duration::from_secs(300);
/// How often it is looked how far it is.
const LOOK: Duration = Duration::from_millis(50);

/// What was submitted.
pub(crate) struct Accepted {
    pub(crate) execution_id: ExecutionId,
    /// Which of [`ACTIONS`].
    pub(crate) action: usize,
    /// When the answer came, on the clock of the records.
    pub(crate) accepted_ns: i64,
}

/// Runs the demo.
pub(crate) async fn run(
    settings: &Settings,
    arguments: &DemoArguments,
) -> anyhow::Result<ExitCode> {
    let folder = tempfile::Builder::new().prefix("attune-demo-").tempdir()?;
    let mut settings = settings.clone();
    settings.wiring = attune_config::Wiring::Embedded;
    settings.data_dir = folder.path().join("data");
    settings.worker.work_dir = Some(folder.path().to_owned());
    let shutdown = Shutdown::new();
    shutdown.listen_for_signals()?;
    let parts = Parts::open(&settings, "demo", &shutdown).await?;
    let (health, metrics) = (Health::new(), Metrics::new());
    let services = [
        Role::Stats,
        Role::CompletionListener,
        Role::Executor,
        Role::Worker,
    ];
    let running = roles::start(&settings, &services, &parts, &health, &metrics, &shutdown).await?;
    let view = running
        .executor
        .context("the executor is one of the roles")?;
    roles::all_owned(&view, settings.cluster.partitions).await?;

    let actions = apply_actions(&parts, &settings, folder.path()).await?;
    let client = CommandClient::start(
        parts.bus.clone(),
        ClientOptions::new(settings.cluster.partitions),
    )
    .await?;
    let began = Instant::now();
    let accepted = submit(&client, arguments.executions).await?;
    watch(&view, &actions, accepted.len(), arguments.json, &shutdown).await?;
    let elapsed = began.elapsed();
    until_stored(parts.store.as_ref()).await?;
    let figures = judge::judge(&parts, &actions, &accepted, folder.path(), elapsed).await?;

    shutdown.cancel();
    let stopped = shutdown.wait(DEADLINE).await;
    parts.close().await;
    stopped?;
    if arguments.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        report::print(&figures);
    }
    Ok(if figures.kept() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Applies the demo's actions: each runs this program's own binary, which records its times.
async fn apply_actions(
    parts: &Parts,
    settings: &Settings,
    folder: &Path,
) -> anyhow::Result<Vec<Action>> {
    let binary = std::env::current_exe().context("this program's own path")?;
    let binary = binary
        .to_str()
        .context("this program's path is not UTF-8")?;
    let mut actions = Vec::new();
    for (name, limit, _) in ACTIONS {
        let record = folder.join(format!("{name}.records"));
        let record = record
            .to_str()
            .context("the temporary folder's path is not UTF-8")?;
        let argv = [binary, "demo-program", record].map(str::to_owned).to_vec();
        let action_ref = name.parse().map_err(anyhow::Error::msg)?;
        let mut spec = ActionSpec::new(action_ref, Run::Program(argv));
        spec.policy.concurrency.limit = Some(limit);
        spec.policy.queue.max_length = Some(100_000);
        let applied = parts
            .store
            .apply_action(&spec, settings.cluster.partitions, "demo")
            .await?;
        actions.push(applied.action);
    }
    Ok(actions)
}

/// Submits everything, the actions mixed, and waits until all is accepted.
async fn submit(client: &CommandClient, executions: u32) -> anyhow::Result<Vec<Accepted>> {
    let mut plan = Vec::new();
    for number in 0..executions {
        // A fixed mixture: the k-th of a hundred belongs to the action whose share covers it.
        let share = (number * 37) % 100;
        let mut upto = 0;
        let action = ACTIONS.iter().position(|(_, _, part)| {
            upto += part;
            share < upto
        });
        let action = action.context("the shares make a hundred")?;
        let work_ms = 10 + (u64::from(number) * 7919) % 30;
        let mut submission = Submission::new(ACTIONS[action].0);
        submission.parameters =
            serde_json::value::to_raw_value(&serde_json::json!({"work_ms": work_ms}))?;
        plan.push((action, submission));
    }
    let mut accepted = Vec::new();
    for chunk in plan.chunks(100) {
        let submissions = chunk
            .iter()
            .map(|(_, submission)| submission.clone())
            .collect();
        let answers = client
            .submit_many(submissions, Duration::from_secs(30))
            .await;
        let accepted_ns = attune_record::now_ns();
        for ((action, _), answer) in chunk.iter().zip(answers) {
            let execution_id = answer?
                .execution_id
                .context("an answer without an execution")?;
            accepted.push(Accepted {
                execution_id,
                action: *action,
                accepted_ns,
            });
        }
    }
    Ok(accepted)
}

/// Waits until the store has the ends of all: what owners count as ended they have decided, and commit now.
async fn until_stored(store: &dyn Store) -> anyhow::Result<()> {
    let deadline = Instant::now() + DEADLINE;
    while parts::has_active(store).await? {
        ensure!(
            Instant::now() < deadline,
            "the ends of executions are not stored"
        );
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

/// Shows progress until nothing waits and nothing runs.
async fn watch(
    view: &ExecutorView,
    actions: &[Action],
    expected: usize,
    quiet: bool,
    shutdown: &Shutdown,
) -> anyhow::Result<()> {
    let bars = MultiProgress::new();
    if quiet || !std::io::stderr().is_terminal() {
        bars.set_draw_target(indicatif::ProgressDrawTarget::hidden());
    }
    let style =
        ProgressStyle::with_template("{prefix:12} {bar:30.cyan/blue} {pos:>4}/{len:4} {msg}")?;
    let bar_of: HashMap<ActionId, ProgressBar> = actions
        .iter()
        .map(|action| {
            let bar = bars.add(ProgressBar::new(0).with_style(style.clone()));
            bar.set_prefix(action.spec.action_ref.to_string());
            (action.id, bar)
        })
        .collect();
    let deadline = Instant::now() + DEADLINE;
    loop {
        let mut done = 0;
        for stats in view.queues.get_all_queue_stats() {
            let Some(bar) = bar_of.get(&stats.action_id) else {
                continue;
            };
            bar.set_length(stats.total_enqueued);
            bar.set_position(stats.total_completed);
            bar.set_message(format!(
                "{} run, {} wait",
                stats.active_count, stats.queue_length
            ));
            done += stats.total_completed;
        }
        if done >= expected as u64 {
            bar_of.values().for_each(ProgressBar::finish);
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!(
                "{done} of {expected} executions ended within {} s",
                DEADLINE.as_secs()
            );
        }
        tokio::select! {
            () = shutdown.cancelled() => bail!("stopped"),
            () = tokio::time::sleep(LOOK) => {}
        }
    }
}
