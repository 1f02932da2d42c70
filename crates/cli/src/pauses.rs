//! `attune queues pause`, `drain`, `resume` and `pauses`: holding queues.

use attune_api_types::{InForce, PauseApplied, PauseList, PauseRequest, PauseView};
use attune_core::{ActionRef, PauseMode, PauseTarget};
use chrono::{DateTime, Utc};
use clap::Args;

use super::http::Http;
use super::render::{Column, duration, one_line, table};
use super::{EXIT_CODES, Exit, Failure, NOBODY, Output};

/// What is held, or resumed.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct PauseArguments {
    #[command(flatten)]
    of: Of,
    /// Why, for the audit log and everybody who looks at the queue.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Who does it, for the audit log.
    #[arg(long, env = "USER", value_name = "NAME", default_value = NOBODY)]
    who: String,
}

#[derive(Debug, Clone, Args)]
#[group(required = true, multiple = false)]
struct Of {
    /// The queue of this action, as in core.echo.
    #[arg(value_name = "REF")]
    action_ref: Option<ActionRef>,
    /// The queues of all actions of this pack: what stands before the first dot of their refs.
    #[arg(long, value_name = "PACK")]
    pack: Option<String>,
    /// Every queue.
    #[arg(long)]
    all: bool,
}

impl Of {
    /// The path of it, and its name for people.
    fn path(&self) -> Result<(String, String), Failure> {
        let (scope, target) = match (&self.action_ref, &self.pack) {
            (Some(action_ref), _) => ("action", action_ref.as_str()),
            (None, Some(pack)) => ("pack", pack.as_str()),
            (None, None) => ("all", ""),
        };
        let target = PauseTarget::of(scope, target)
            .map_err(|(_, problem)| Failure::usage(format!("--pack: {problem}")))?;
        let path = match &target {
            PauseTarget::All => "/pauses/all".to_owned(),
            of => format!("/pauses/{}/{}", of.scope(), of.target()),
        };
        let name = match &target {
            PauseTarget::All => "every queue".to_owned(),
            of => of.to_string(),
        };
        Ok((path, name))
    }
}

/// Holds, or resumes where no mode is given.
pub(super) async fn change(
    http: &Http,
    arguments: PauseArguments,
    mode: Option<PauseMode>,
    json: bool,
) -> Result<Output, Failure> {
    let (path, name) = arguments.of.path()?;
    let who = Some(super::who(&arguments.who).to_owned());
    let reason = arguments.reason;
    let applied: PauseApplied = match mode {
        Some(mode) => {
            let asked = PauseRequest { mode, reason, who };
            http.put(&path, &[], &asked).await?
        }
        None => {
            http.delete(&path, &[("who", who), ("reason", reason)])
                .await?
        }
    };
    let output = if json {
        Output::json(&applied)
    } else {
        Output::text(said(&applied, &name))
    };
    Ok(match applied.pending_reason {
        Some(reason) if json => {
            let note = format!("it is stored, and comes into force by itself: {reason}");
            output.with(Exit::Done, vec![note])
        }
        _ => output,
    })
}

fn said(applied: &PauseApplied, name: &str) -> String {
    let mut text = match (&applied.before, &applied.now) {
        (_, Some(now)) => match now.mode {
            PauseMode::Pause => {
                format!("{name} is paused: what comes is accepted, and nothing starts")
            }
            PauseMode::Drain => format!(
                "{name} is being drained: what comes is refused, and nothing starts; what runs \
                 goes on (`attune queues` says when nothing does)"
            ),
        },
        (Some(_), None) => format!("{name} is resumed"),
        (None, None) => format!("{name} was not held by itself"),
    };
    text.push_str(&match (applied.applied, &applied.pending_reason) {
        (InForce::Now, _) => "; in force everywhere".to_owned(),
        (InForce::Pending, reason) => format!(
            "; NOT in force everywhere yet, it comes by itself: {}",
            one_line(
                reason
                    .as_deref()
                    .unwrap_or("some executors have not answered")
            )
        ),
    });
    for other in &applied.also_held_by {
        text.push_str(&format!("\nit is still held: {}", one(other)));
    }
    text
}

/// A pause on one line.
fn one(pause: &PauseView) -> String {
    let target = pause
        .target
        .as_deref()
        .map_or_else(String::new, |target| format!(" {target}"));
    let reason = pause.reason.as_deref();
    let reason = reason.map_or_else(String::new, |reason| format!(": {}", one_line(reason)));
    let word = match pause.mode {
        PauseMode::Pause => "paused",
        PauseMode::Drain => "draining",
    };
    format!(
        "{word} by {} with {}{target}{reason}",
        one_line(&pause.who),
        pause.scope
    )
}

/// How a queue is held, for the list of queues; `active` executions of it hold a slot.
pub(super) fn of_queue(pauses: &[PauseView], active: u64) -> Option<String> {
    let strongest = pauses.iter().max_by_key(|pause| pause.mode)?;
    let mut text = one(strongest);
    if strongest.mode == PauseMode::Drain && active == 0 {
        text = text.replacen("draining", "drained", 1);
    }
    if pauses.len() > 1 {
        text.push_str(&format!(" (and {} more)", pauses.len() - 1));
    }
    Some(text)
}

/// Everything that is held.
pub(super) async fn list(http: &Http, json: bool) -> Result<Output, Failure> {
    let list: PauseList = http.get("/pauses", &[]).await?;
    Ok(if json {
        Output::json(&list)
    } else if list.pauses.is_empty() {
        Output::text("nothing is held")
    } else {
        Output::text(pause_table(&list.pauses, Utc::now()))
    })
}

fn pause_table(pauses: &[PauseView], now: DateTime<Utc>) -> String {
    let rows = pauses.iter().map(|pause| {
        vec![
            pause.scope.clone(),
            pause.target.clone().unwrap_or_else(|| "-".to_owned()),
            pause.mode.to_string(),
            duration(now - pause.since),
            pause.who.clone(),
            pause.reason.clone().unwrap_or_default(),
        ]
    });
    let columns = [
        Column::Words("scope"),
        Column::Words("target"),
        Column::Words("mode"),
        Column::Figures("for"),
        Column::Words("who"),
        Column::Words("reason"),
    ];
    table(&columns, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(scope: &str, mode: PauseMode) -> PauseView {
        PauseView {
            scope: scope.to_owned(),
            target: (scope != "all").then(|| "core".to_owned()),
            mode,
            since: DateTime::from_timestamp(1_800_000_000, 0).unwrap(),
            who: "ann".to_owned(),
            reason: Some("a new\nhost".to_owned()),
        }
    }

    #[test]
    fn a_queue_says_how_it_is_held() {
        assert_eq!(of_queue(&[], 0), None);
        let pauses = [
            pause("all", PauseMode::Pause),
            pause("pack", PauseMode::Drain),
        ];
        let of = |pauses, active| of_queue(pauses, active).unwrap();
        assert_eq!(
            of(&pauses, 2),
            "draining by ann with pack core: a new host (and 1 more)"
        );
        assert!(of(&pauses, 0).starts_with("drained by ann"));
        assert_eq!(of(&pauses[..1], 0), "paused by ann with all: a new host");
    }

    #[test]
    fn who_resumes_is_told_what_still_holds() {
        let applied = PauseApplied {
            before: Some(pause("pack", PauseMode::Pause)),
            now: None,
            also_held_by: vec![pause("all", PauseMode::Pause)],
            applied: InForce::Now,
            pending_reason: None,
        };
        assert_eq!(
            said(&applied, "pack core"),
            "pack core is resumed; in force everywhere\nit is still held: paused by ann with all: a new host"
        );
    }
}
