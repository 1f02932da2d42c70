//! `attune queues pause`, `drain`, `resume` and `pauses`: holding queues.

use attune_api_types::{InForce, PauseApplied, PauseList, PauseRequest, PauseView};
use attune_core::{ActionRef, PauseMode, PauseTarget};
use chrono::{DateTime, Utc};
use clap::Args;

use super::http::Http;
use super::render::{Column, duration, one_line, table};
use super::{EXIT_CODES, Exit, Failure, NOBODY, Output};

/// How many of those that stay held are named.
const NAMED: usize = 5;

/// What is held, or resumed.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct PauseArguments {
    #[command(flatten)]
    of: QueuesNamed,
    /// Why, for the audit log and everybody who looks at the queue.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Who does it, for the audit log.
    #[arg(long, env = "USER", value_name = "NAME", default_value = NOBODY)]
    who: String,
}

/// Which queues are meant.
///
/// That none are named is said by [`target`](Self::target) and not by the parser, which names the
/// forms as it writes them and not what they mean.
#[derive(Debug, Clone, Args)]
#[group(multiple = false)]
pub(super) struct QueuesNamed {
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

impl QueuesNamed {
    /// What is meant.
    pub(super) fn target(&self) -> Result<PauseTarget, Failure> {
        let (scope, target) = match (&self.action_ref, &self.pack) {
            (Some(action_ref), _) => ("action", action_ref.as_str()),
            (None, Some(pack)) => ("pack", pack.as_str()),
            (None, None) if self.all => ("all", ""),
            (None, None) => {
                let words = "say which queues: REF for that of one action, as in core.echo; --pack PACK for \
                             those of all actions of a pack, as in --pack core; or --all for every one";
                return Err(Failure::usage(words));
            }
        };
        PauseTarget::of(scope, target)
            .map_err(|(_, problem)| Failure::usage(format!("--pack: {problem}")))
    }
}

/// The path of what is held.
fn path(target: &PauseTarget) -> String {
    match target {
        PauseTarget::All => "/pauses/all".to_owned(),
        of => format!("/pauses/{}/{}", of.scope(), of.target()),
    }
}

/// Its name for people.
fn name(target: &PauseTarget) -> String {
    match target {
        PauseTarget::All => "every queue".to_owned(),
        of => of.to_string(),
    }
}

/// Holds, or resumes where no mode is given.
pub(super) async fn change(
    http: &Http,
    arguments: PauseArguments,
    mode: Option<PauseMode>,
    json: bool,
) -> Result<Output, Failure> {
    let target = arguments.of.target()?;
    let path = path(&target);
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
    if !json {
        let within = match applied.now {
            Some(_) => Some(Vec::new()),
            None => held_within(http, &target).await,
        };
        return Ok(Output::text(said(&applied, &target, within.as_deref())));
    }
    let output = Output::json(&applied);
    Ok(match applied.pending_reason {
        Some(reason) => {
            let note = format!("it is stored, and comes into force by itself: {reason}");
            output.with(Exit::Done, vec![note])
        }
        None => output,
    })
}

/// What is held within a target that is resumed, and stays so; `None` when that cannot be seen.
async fn held_within(http: &Http, target: &PauseTarget) -> Option<Vec<PauseView>> {
    if let PauseTarget::Action(_) = target {
        return Some(Vec::new());
    }
    // It is resumed whether this can be read or not.
    let list: PauseList = http.get("/pauses", &[]).await.ok()?;
    let within = list.pauses.into_iter().filter(|pause| {
        let other = target_of(pause);
        match (target, &other) {
            (PauseTarget::All, Some(other)) => *other != PauseTarget::All,
            (PauseTarget::Pack(pack), Some(PauseTarget::Action(it))) => it.pack() == pack,
            _ => false,
        }
    });
    Some(within.collect())
}

/// What a pause holds; `None` where this release does not know it.
fn target_of(pause: &PauseView) -> Option<PauseTarget> {
    PauseTarget::of(&pause.scope, pause.target.as_deref().unwrap_or_default()).ok()
}

/// What came of it; `within` is what stays held within what was resumed, as far as it could be seen.
fn said(applied: &PauseApplied, target: &PauseTarget, within: Option<&[PauseView]>) -> String {
    let first = changed(applied, target, within) + &in_force(applied);
    let mut lines = vec![first];
    lines.extend(applied.also_held_by.iter().map(|other| {
        let held = format!("{}{}", one(other), resumes(other));
        match applied.now {
            // Whoever holds it has got what was asked for; this is for the day on which it is resumed.
            Some(_) => format!("besides, it is {held}"),
            None => format!("it does not go on yet, it is {held}"),
        }
    }));
    let within = within.unwrap_or_default();
    let named = within.iter().take(NAMED);
    lines.extend(named.map(|pause| format!("{}{}", stays(pause), resumes(pause))));
    if within.len() > NAMED {
        let more = within.len() - NAMED;
        lines.push(format!("and {more} more (`attune queues pauses`)"));
    }
    lines.join("\n")
}

fn changed(applied: &PauseApplied, target: &PauseTarget, within: Option<&[PauseView]>) -> String {
    let name = name(target);
    match (&applied.before, &applied.now) {
        (_, Some(now)) => match now.mode {
            PauseMode::Pause => {
                format!("{name} is paused: what comes is accepted, and nothing starts")
            }
            PauseMode::Drain => format!(
                "{name} is being drained: what comes is refused, and nothing starts; what runs \
                 goes on (`attune queues` says `drained` when nothing does)"
            ),
        },
        (Some(_), None) => format!("{name} is resumed"),
        (None, None) => nothing_resumed(applied, target, within),
    }
}

fn in_force(applied: &PauseApplied) -> String {
    let is_changed = applied.before.is_some() || applied.now.is_some();
    let reason = applied.pending_reason.as_deref();
    match applied.applied {
        InForce::Now if is_changed => "; in force everywhere".to_owned(),
        // Nothing was asked for that could be in force.
        InForce::Now => String::new(),
        InForce::Pending => {
            let why = one_line(reason.unwrap_or("some executors have not answered"));
            match is_changed {
                true => format!("; NOT in force everywhere yet, it comes by itself: {why}"),
                false => {
                    format!("; executors that missed an earlier change hear of it later: {why}")
                }
            }
        }
    }
}

/// Said where something was to be resumed that was not held.
fn nothing_resumed(
    applied: &PauseApplied,
    target: &PauseTarget,
    within: Option<&[PauseView]>,
) -> String {
    match (target, within) {
        (PauseTarget::All, Some([])) => "nothing was held: no queue is paused or drained".to_owned(),
        (PauseTarget::All, Some(_)) => {
            "nothing was held with --all, so nothing is resumed".to_owned()
        }
        (PauseTarget::All, None) => {
            "nothing was held with --all, so nothing is resumed (`attune queues pauses` says what is held \
             otherwise)"
                .to_owned()
        }
        (_, Some([])) if applied.also_held_by.is_empty() => {
            format!("{target} was not held, so nothing is resumed")
        }
        _ => format!("{target} itself was not held, so nothing is resumed"),
    }
}

/// How a pause is taken back.
fn resumes(pause: &PauseView) -> String {
    match target_of(pause) {
        Some(PauseTarget::All) => " (`attune queues resume --all` ends that)".to_owned(),
        Some(PauseTarget::Pack(pack)) => {
            format!(" (`attune queues resume --pack {pack}` ends that)")
        }
        Some(PauseTarget::Action(it)) => format!(" (`attune queues resume {it}` ends that)"),
        None => String::new(),
    }
}

/// A pause on one line.
fn one(pause: &PauseView) -> String {
    let (held, reason) = (held_by(pause), reason(pause));
    format!("{held} with {}{reason}", of(pause))
}

/// The same of what stays held when more than it is resumed.
fn stays(pause: &PauseView) -> String {
    let (held, reason) = (held_by(pause), reason(pause));
    format!("{} stays {held}{reason}", of(pause))
}

fn held_by(pause: &PauseView) -> String {
    let word = match pause.mode {
        PauseMode::Pause => "paused",
        PauseMode::Drain => "draining",
    };
    format!("{word} by {}", one_line(&pause.who))
}

fn of(pause: &PauseView) -> String {
    let target = pause.target.as_deref();
    let target = target.map_or_else(String::new, |target| format!(" {target}"));
    format!("{}{target}", pause.scope)
}

fn reason(pause: &PauseView) -> String {
    let reason = pause.reason.as_deref();
    reason.map_or_else(String::new, |reason| format!(": {}", one_line(reason)))
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
        Column::Text("target"),
        Column::Words("mode"),
        Column::Figures("for"),
        Column::Text("who"),
        Column::Text("reason"),
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

    fn applied(before: bool, now: Option<PauseMode>, others: &[PauseView]) -> PauseApplied {
        PauseApplied {
            before: before.then(|| pause("pack", PauseMode::Pause)),
            now: now.map(|mode| pause("pack", mode)),
            also_held_by: others.to_vec(),
            applied: InForce::Now,
            pending_reason: None,
        }
    }

    fn pack() -> PauseTarget {
        PauseTarget::Pack("core".to_owned())
    }

    #[test]
    fn who_resumes_is_told_what_else_holds() {
        let others = [pause("all", PauseMode::Pause)];
        assert_eq!(
            said(&applied(true, None, &others), &pack(), Some(&[])),
            "pack core is resumed; in force everywhere\nit does not go on yet, it is paused by ann with all: \
             a new host (`attune queues resume --all` ends that)"
        );
        let mut action = pause("action", PauseMode::Drain);
        action.target = Some("core.echo".to_owned());
        let within = vec![action; 7];
        let text = said(&applied(true, None, &[]), &pack(), Some(&within));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 7, "{text}");
        assert_eq!(
            lines[1],
            "action core.echo stays draining by ann: a new host (`attune queues resume core.echo` ends that)"
        );
        assert_eq!(lines[6], "and 2 more (`attune queues pauses`)");
    }

    #[test]
    fn who_holds_is_not_told_that_it_failed() {
        let others = [pause("all", PauseMode::Pause)];
        let text = said(
            &applied(false, Some(PauseMode::Drain), &others),
            &pack(),
            Some(&[]),
        );
        assert_eq!(
            text,
            "pack core is being drained: what comes is refused, and nothing starts; what runs goes on (`attune \
             queues` says `drained` when nothing does); in force everywhere\nbesides, it is paused by ann with \
             all: a new host (`attune queues resume --all` ends that)"
        );
    }

    #[test]
    fn who_resumes_what_is_not_held_is_told_so() {
        let nothing = applied(false, None, &[]);
        let all = PauseTarget::All;
        assert_eq!(
            said(&nothing, &all, Some(&[])),
            "nothing was held: no queue is paused or drained"
        );
        let within = [pause("pack", PauseMode::Pause)];
        assert_eq!(
            said(&nothing, &all, Some(&within)),
            "nothing was held with --all, so nothing is resumed\npack core stays paused by ann: a new \
             host (`attune queues resume --pack core` ends that)"
        );
        assert!(said(&nothing, &all, None).contains("`attune queues pauses`"));
        assert_eq!(
            said(&nothing, &pack(), Some(&[])),
            "pack core was not held, so nothing is resumed"
        );
        let mut pending = applied(false, None, &[]);
        pending.applied = InForce::Pending;
        assert_eq!(
            said(&pending, &all, Some(&[])),
            "nothing was held: no queue is paused or drained; executors that missed an earlier change hear of it \
             later: some executors have not answered"
        );
        let others = [pause("all", PauseMode::Pause)];
        let text = said(&applied(false, None, &others), &pack(), Some(&[]));
        assert!(text.starts_with("pack core itself was not held"), "{text}");
        assert!(text.contains("\nit does not go on yet"), "{text}");
    }
}
