//! `attune action apply | list | show`.

use std::collections::HashMap;
use std::path::PathBuf;

use attune_api_types::{ActionApplied, ActionList, ActionView, InForce};
use attune_core::foreign::cut;
use attune_core::{ActionRef, Run};
use clap::{Args, Subcommand};
use serde_json::json;

use super::action_file::{self, FileAction};
use super::documents::{self, Place};
use super::http::{CallError, Http};
use super::render::{Column, limit, one_line, or_dash, table};
use super::{Connect, EXIT_CODES, Exit, Failure, NOBODY, Output, bounded};

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ActionArguments {
    #[command(flatten)]
    pub(super) connect: Connect,
    #[command(subcommand)]
    command: ActionCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum ActionCommand {
    /// Create or change the actions of YAML or JSON files; a new limit takes effect on the live queue.
    #[command(after_help = EXIT_CODES)]
    Apply {
        /// Files, or folders whose *.yaml, *.yml and *.json files are applied in the order of their names.
        #[arg(required = true, value_name = "FILE|DIR")]
        paths: Vec<PathBuf>,
        /// Who does it, for the versions of the policies.
        #[arg(long, env = "USER", value_name = "NAME", default_value = NOBODY)]
        who: String,
    },
    /// List the actions of the server.
    #[command(after_help = EXIT_CODES)]
    List,
    /// Show an action, as a file that could be applied.
    #[command(after_help = EXIT_CODES)]
    Show {
        /// The action's ref, as in core.echo.
        #[arg(value_name = "REF")]
        action_ref: ActionRef,
    },
}

pub(super) async fn execute(http: &Http, arguments: ActionArguments) -> Result<Output, Failure> {
    let json = arguments.connect.json;
    match arguments.command {
        ActionCommand::Apply { paths, who } => apply(http, &paths, who, json).await,
        ActionCommand::List => list(http, json).await,
        ActionCommand::Show { action_ref } => {
            let view: ActionView = http.get(&format!("/actions/{action_ref}"), &[]).await?;
            Ok(if json {
                Output::json(&view)
            } else {
                Output::text(action_file::write(&view.spec))
            })
        }
    }
}

/// Reads every file before anything is applied: a mistake in the last one must not leave the
/// first ones applied.
fn read(paths: &[PathBuf]) -> Result<Vec<FileAction>, Failure> {
    let (mut actions, mut problems) = (Vec::new(), Vec::new());
    for path in paths {
        let files = documents::files(path).unwrap_or_else(|problem| {
            problems.push(problem);
            Vec::new()
        });
        for file in files {
            match bounded::read_file(&file) {
                Ok(text) => {
                    let (found, wrong) = action_file::parse(&file, &text);
                    actions.extend(found);
                    problems.extend(wrong);
                }
                Err(error) => problems.push(format!("{}: {error}", file.display())),
            }
        }
    }
    let mut seen: HashMap<&ActionRef, &Place> = HashMap::new();
    for FileAction { spec, place } in &actions {
        if let Some(first) = seen.insert(&spec.action_ref, place) {
            problems.push(format!("{place}: {} is also in {first}", spec.action_ref));
        }
    }
    match problems.as_slice() {
        [] if actions.is_empty() => Err(Failure::usage(format!(
            "no action in {}",
            paths
                .iter()
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
                .join(", ")
        ))),
        [] => Ok(actions),
        problems => Err(Failure::usage(format!(
            "nothing was applied\n{}",
            problems.join("\n")
        ))),
    }
}

/// Asks the server about every action before one is applied, for the same reason: it judges what
/// a file alone does not tell, such as the schema of the parameters.
async fn check(http: &Http, actions: &[FileAction]) -> Result<(), Failure> {
    let mut problems = Vec::new();
    for FileAction { spec, place } in actions {
        let path = format!("/actions/{}", spec.action_ref);
        let query = [("check", Some(true.to_string()))];
        match http.put::<()>(&path, &query, spec).await {
            Ok(()) => {}
            Err(error @ CallError::Refused(_)) => {
                problems.push(format!("{place}: {}: {error}", spec.action_ref));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "nothing was applied\n{}",
        problems.join("\n")
    )))
}

async fn apply(http: &Http, paths: &[PathBuf], who: String, json: bool) -> Result<Output, Failure> {
    let actions = read(paths)?;
    // One alone is refused or applied whole.
    if actions.len() > 1 {
        check(http, &actions).await?;
    }
    let query = [("who", Some(super::who(&who).to_owned()))];
    let (mut applied, mut problems, mut exit) = (Vec::new(), Vec::new(), Exit::Done);
    for FileAction { spec, place } in &actions {
        let path = format!("/actions/{}", spec.action_ref);
        match http.put::<ActionApplied>(&path, &query, spec).await {
            Ok(answer) => {
                if let Some(reason) = &answer.pending_reason {
                    problems.push(format!(
                        "{} is stored and not in force yet: {}. Nothing is to be repeated: it \
                         comes into force by itself, within executor.reconcile.interval_seconds \
                         (10) as long as an executor runs",
                        spec.action_ref,
                        one_line(reason)
                    ));
                }
                applied.push(answer);
            }
            Err(error) => {
                problems.push(format!("{place}: {}: {error}", spec.action_ref));
                let stop = !matches!(error, CallError::Refused(_));
                exit = exit.max(Failure::from(error).exit);
                if stop {
                    // The others would fail alike.
                    break;
                }
            }
        }
    }
    let output = if json {
        Output::json(&json!({"applied": applied}))
    } else {
        Output::text(applied_table(&applied))
    };
    Ok(output.with(exit, problems))
}

fn applied_table(applied: &[ActionApplied]) -> String {
    if applied.is_empty() {
        return String::new();
    }
    let rows = applied.iter().map(|answer| {
        let outcome = match (answer.created, answer.changed) {
            (true, _) => "created",
            (false, true) => "changed",
            (false, false) => "unchanged",
        };
        let in_force = match answer.applied {
            InForce::Now => "now",
            InForce::Pending => "pending",
        };
        vec![
            answer.action.action_ref.to_string(),
            outcome.to_owned(),
            limit(answer.action.spec.policy.concurrency.limit),
            in_force.to_owned(),
        ]
    });
    let columns = [
        Column::Words("action"),
        Column::Words("result"),
        Column::Figures("limit"),
        Column::Words("in force"),
    ];
    table(&columns, rows.collect())
}

async fn list(http: &Http, json: bool) -> Result<Output, Failure> {
    let mut actions: Vec<ActionView> = Vec::new();
    let whole = json.then(|| "parameters,env".to_owned());
    let mut after = None;
    loop {
        let page: ActionList = http
            .get(
                "/actions",
                &[("after", after.take()), ("include", whole.clone())],
            )
            .await?;
        actions.extend(page.actions);
        match page.next {
            Some(next) => after = Some(next.to_string()),
            None => break,
        }
    }
    Ok(if json {
        Output::json(&json!({"actions": actions}))
    } else {
        Output::text(list_table(&actions))
    })
}

fn list_table(actions: &[ActionView]) -> String {
    let rows = actions.iter().map(|action| {
        let spec = &action.spec;
        let runs = match &spec.run {
            Run::Program(argv) => argv.join(" "),
            Run::Builtin(_) => "(built in)".to_owned(),
        };
        vec![
            action.action_ref.to_string(),
            limit(spec.policy.concurrency.limit),
            or_dash(spec.policy.queue.max_length),
            spec.pool.clone(),
            action.version.to_string(),
            cut(&runs, 60).into_owned(),
        ]
    });
    let columns = [
        Column::Text("action"),
        Column::Figures("limit"),
        Column::Figures("max waiting"),
        Column::Text("pool"),
        Column::Figures("version"),
        Column::Text("runs"),
    ];
    table(&columns, rows.collect())
}
