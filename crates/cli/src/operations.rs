//! `attune queues clear`, `attune executions cancel`, `reprioritise` and `front`: what is done to many
//! executions at once.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::time::Duration;

use attune_api_types::{
    OperationFilter, OperationName, OperationPreview, OperationRequest, OperationState,
    OperationView,
};
use attune_core::{ActionRef, ExecutionId, PauseTarget, Priority, RequestId};
use clap::Args;
use reqwest::Method;
use tokio::time::timeout_at;

use super::http::{CallError, Http};
use super::operation_follow::{self, Followed, Patience};
use super::pauses::QueuesNamed;
use super::{Exit, Failure, Output, seconds};

/// How often an answer that got lost is asked for again, and after which pause.
const TRIES: usize = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// How long it is waited for the end of an operation unless somebody says otherwise, in seconds.
const WAIT_SECONDS: u64 = 60;

/// Shown below the options of every command that is, or may be, an operation.
pub(super) const EXIT_CODES: &str = "Exit codes:
  0  done
  2  wrong usage, the server refused, or of executions that are named by number none waits
  3  no server, it cannot be done now, it is not over after --wait and goes on, or it is unknown
     whether it was done";

/// How an operation is asked for.
#[derive(Debug, Clone, Args)]
pub(super) struct How {
    /// Only count what it would be about.
    #[arg(long)]
    dry_run: bool,
    /// Why, for the audit log.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Who does it, for the audit log; `$USER` unless given.
    #[arg(long, value_name = "NAME")]
    who: Option<String>,
    /// Wait at most so many seconds for its end, 60 unless given, then end with exit code 3: it goes on by
    /// itself, and `attune operations show` says how far it is. 0: do not wait for more than the server's
    /// first answer, which comes within 5 s.
    #[arg(long, value_name = "SECONDS", value_parser = seconds::<u64>)]
    wait: Option<u64>,
}

impl How {
    /// Whether it is more than doing it at once, in nobody's name.
    pub(super) fn says_something(&self) -> bool {
        self.dry_run || self.reason.is_some() || self.who.is_some() || self.wait.is_some()
    }

    /// Who does it.
    fn who(&self) -> String {
        let user = || std::env::var("USER").ok();
        let name = self.who.clone().or_else(user);
        super::who(name.as_deref().unwrap_or_default()).to_owned()
    }
}

/// Which executions are meant: those that all of this applies to.
#[derive(Debug, Clone, Args)]
pub(super) struct Which {
    /// Those of this action, as in core.echo.
    #[arg(long, value_name = "REF")]
    action: Option<ActionRef>,
    /// Those of the actions of this pack: what stands before the first dot of their refs.
    #[arg(long, value_name = "PACK", conflicts_with = "action")]
    pack: Option<String>,
    /// Those of this user.
    #[arg(long)]
    user: Option<String>,
    /// Those that have this label; may be given several times, and then all of them count.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Those that have this priority now.
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<Priority>,
    /// Every execution.
    #[arg(long, conflicts_with_all = ["action", "pack", "user", "labels", "priority"])]
    all: bool,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| "write a label as NAME=VALUE".to_owned())?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Which {
    /// Whether nothing of it is given.
    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty()
            && self
                .filter(&[])
                .is_ok_and(|filter| filter == OperationFilter::default())
    }

    fn filter(&self, ids: &[ExecutionId]) -> Result<OperationFilter, Failure> {
        let mut labels = BTreeMap::new();
        for (name, value) in &self.labels {
            // Of two values of one label an execution has one at most: keeping the last would name more.
            if labels.insert(name.clone(), value.clone()).is_some() {
                return Err(Failure::usage(format!("the label `{name}` is given twice")));
            }
        }
        Ok(OperationFilter {
            action: self.action.as_ref().map(ToString::to_string),
            pack: self.pack.clone(),
            user: self.user.clone(),
            labels,
            priority: self.priority,
            ids: ids.to_vec(),
            all: self.all,
        })
    }
}

/// `attune queues clear`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct ClearArguments {
    #[command(flatten)]
    of: QueuesNamed,
    #[command(flatten)]
    how: How,
}

/// `attune executions reprioritise`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct ReprioritiseArguments {
    /// The executions' numbers; without them those that the options name.
    #[arg(value_name = "ID")]
    ids: Vec<ExecutionId>,
    /// The priority that they shall have.
    #[arg(long, value_name = "PRIORITY")]
    to: Priority,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: How,
}

/// `attune executions front`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct FrontArguments {
    /// The executions' numbers; without them those that the options name.
    #[arg(value_name = "ID")]
    ids: Vec<ExecutionId>,
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    how: How,
}

pub(super) async fn clear(http: &Http, of: ClearArguments, json: bool) -> Result<Output, Failure> {
    let filter = match of.of.target()? {
        PauseTarget::All => OperationFilter {
            all: true,
            ..OperationFilter::default()
        },
        PauseTarget::Pack(pack) => OperationFilter {
            pack: Some(pack),
            ..OperationFilter::default()
        },
        PauseTarget::Action(action_ref) => OperationFilter {
            action: Some(action_ref.into()),
            ..OperationFilter::default()
        },
    };
    run(
        http,
        request(OperationName::Clear, filter, of.how.clone()),
        &of.how,
        json,
    )
    .await
}

/// Ends what the options name.
pub(super) async fn cancel(
    http: &Http,
    (which, ids): (&Which, &[ExecutionId]),
    include_running: bool,
    how: &How,
    json: bool,
) -> Result<Output, Failure> {
    let mut request = request(OperationName::Cancel, which.filter(ids)?, how.clone());
    request.include_running = include_running;
    run(http, request, how, json).await
}

pub(super) async fn reprioritise(
    http: &Http,
    of: ReprioritiseArguments,
    json: bool,
) -> Result<Output, Failure> {
    let filter = of.which.filter(&of.ids)?;
    let mut request = request(OperationName::Reprioritise, filter, of.how.clone());
    request.priority = Some(of.to);
    run(http, request, &of.how, json).await
}

pub(super) async fn front(http: &Http, of: FrontArguments, json: bool) -> Result<Output, Failure> {
    let filter = of.which.filter(&of.ids)?;
    run(
        http,
        request(OperationName::MoveToFront, filter, of.how.clone()),
        &of.how,
        json,
    )
    .await
}

fn request(kind: OperationName, filter: OperationFilter, how: How) -> OperationRequest {
    OperationRequest {
        kind,
        filter,
        priority: None,
        include_running: false,
        who: Some(how.who()),
        reason: how.reason,
        request_id: Some(RequestId::fresh()),
    }
}

async fn run(
    http: &Http,
    request: OperationRequest,
    how: &How,
    json: bool,
) -> Result<Output, Failure> {
    if request.filter == OperationFilter::default() {
        let words = "say which executions: by their numbers, by --action, --pack, --user, --label and \
                     --priority, or --all for every one";
        return Err(Failure::usage(words));
    }
    let preview = http
        .request(Method::POST, "/operations/preview")
        .json(&request);
    if how.dry_run {
        let preview: OperationPreview = http.send(preview).await?;
        return Ok(if json {
            Output::json(&preview)
        } else {
            Output::text(match preview.matched {
                1 => "1 execution would be touched".to_owned(),
                many => format!("{many} executions would be touched"),
            })
        });
    }
    let patience = Patience::of(how.wait.unwrap_or(WAIT_SECONDS));
    let expected = match io::stderr().is_terminal() {
        true => Some(http.send::<OperationPreview>(preview).await?.matched),
        false => None,
    };
    let begun = begin(http, &request, patience).await?;
    let followed = operation_follow::to_its_end(http, begun, patience, expected).await?;
    Ok(told(&followed, json))
}

/// What came of it, and the exit code of that.
fn told(followed: &Followed, json: bool) -> Output {
    let now = &followed.now;
    let output = match json {
        true => Output::json(now),
        false => Output::text(said(now)),
    };
    if let Some(words) = &followed.not_over {
        return output.with(Exit::Unknown, vec![words.clone()]);
    }
    match now.filter.ids.len() {
        // Whoever names somebody who is not there is told so as by everything else that takes a number.
        named if named > 0 && now.matched == 0 => {
            output.with(Exit::Refused, vec![nobody_waits(now, named)])
        }
        _ => output,
    }
}

/// Whether it says more than the numbers of those that it is about.
fn has_options(operation: &OperationView) -> bool {
    let only_ids = OperationFilter {
        ids: operation.filter.ids.clone(),
        ..OperationFilter::default()
    };
    operation.filter != only_ids
}

/// Said where none of those that are named by number was found.
fn nobody_waits(operation: &OperationView, named: usize) -> String {
    let waits = match operation.include_running {
        true => "waits or runs",
        false => "waits",
    };
    let and_is_meant = match has_options(operation) {
        true => " and is meant by the options",
        false => "",
    };
    format!(
        "of the {named} that are named nobody {waits}{and_is_meant} (`attune executions show ID` says where \
         one is)"
    )
}

/// Asks for it, again under the same request id where the answer got lost.
async fn begin(
    http: &Http,
    request: &OperationRequest,
    patience: Patience,
) -> Result<OperationView, Failure> {
    let mut tries = 0;
    loop {
        tries += 1;
        let asked = http.request(Method::POST, "/operations").json(request);
        let answer = timeout_at(patience.for_the_first_answer(), http.send(asked)).await;
        let Ok(answer) = answer else {
            return Err(Failure::unknown(
                "no answer in time: it may have begun, and goes on then (`attune operations list`)"
                    .to_owned(),
            ));
        };
        match answer {
            Err(CallError::Unknown(_) | CallError::Unavailable(_))
                if tries < TRIES && !patience.is_over() =>
            {
                tokio::time::sleep(PAUSE).await;
            }
            outcome => return Ok(outcome?),
        }
    }
}

fn said(operation: &OperationView) -> String {
    let done = match operation.kind {
        OperationName::Clear | OperationName::Cancel if operation.include_running => {
            "cancelled, or asked to end"
        }
        OperationName::Clear | OperationName::Cancel => "cancelled",
        OperationName::Reprioritise => "reprioritised",
        OperationName::MoveToFront => "moved to the front",
        OperationName::Unknown => "done",
    };
    let so_far = match operation.state {
        OperationState::Running => " so far",
        OperationState::Done => "",
    };
    let mut text = format!(
        "operation {}: {} of {} {done}{so_far}",
        operation.id, operation.done, operation.matched
    );
    if operation.skipped > 0 {
        let what = match operation.kind {
            OperationName::Clear | OperationName::Cancel => "waited no longer, or were being ended",
            _ => "waited no longer, or were so already",
        };
        text.push_str(&format!("; {} {what}", operation.skipped));
    }
    let named = operation.filter.ids.len() as u64;
    let others = named.saturating_sub(operation.matched);
    // Of none of them it is said beside the counts.
    if others > 0 && operation.matched > 0 && operation.state == OperationState::Done {
        let do_not = match operation.include_running {
            true => "neither wait nor run",
            false => "do not wait",
        };
        text.push_str(&format!(
            "; {others} of the {named} that are named {do_not}"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_named_once() {
        use clap::Parser as _;

        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            which: Which,
        }

        let filter = |line: &str| {
            let line = Line::try_parse_from(std::iter::once("x").chain(line.split(' '))).unwrap();
            assert!(!line.which.is_empty(), "it names something");
            line.which.filter(&[])
        };
        let two = filter("--label a=b --label b=c").unwrap();
        assert_eq!(two.labels.len(), 2);
        assert!(filter("--label a=b --label a=c").is_err());
    }

    #[test]
    fn labels_are_read_as_they_are_written() {
        assert_eq!(label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(label("=b").is_err() && label("a").is_err());
    }
}
