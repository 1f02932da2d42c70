//! `attune queues limit`: how many executions of an action may hold a slot at once.

use attune_api_types::{ActionView, InForce, PolicyApplied, PolicyShown};
use attune_core::{ActionPolicy, ActionRef, PolicyTarget};
use clap::Args;
use serde_json::json;

use super::http::{CallError, Http};
use super::{EXIT_CODES, Exit, Failure, NOBODY, Output, policies};

/// `attune queues limit`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct LimitArguments {
    /// The action's ref, as in core.echo.
    #[arg(value_name = "REF")]
    action_ref: ActionRef,
    /// How many executions may hold a slot at once; `none` takes the limit away.
    #[arg(value_name = "N", value_parser = limit)]
    limit: Limit,
    /// Who does it; the policy keeps every version with its author.
    #[arg(long, env = "USER", value_name = "NAME", default_value = NOBODY)]
    who: String,
}

#[derive(Debug, Clone, Copy)]
struct Limit(Option<u32>);

fn limit(text: &str) -> Result<Limit, String> {
    match text.parse() {
        _ if text == "none" => Ok(Limit(None)),
        Ok(0) | Err(_) => Err(
            "write a whole number from 1 on, or none; to let nothing start, `attune \
                               queues pause`"
                .to_owned(),
        ),
        Ok(limit) => Ok(Limit(Some(limit))),
    }
}

/// The policy of an action, as it was shown.
fn policy_of(shown: &PolicyShown) -> Result<ActionPolicy, Failure> {
    let document = shown.policy.document.as_ref();
    let policy = document.and_then(|document| document.policy.clone());
    match policy {
        None => Ok(ActionPolicy::default()),
        Some(policy) => serde_json::from_value(policy).map_err(|error| {
            Failure::usage(format!(
                "the policy has fields that this program does not know; use one of the server's release: {error}"
            ))
        }),
    }
}

/// Changes the limit of an action in its policy.
pub(super) async fn set_limit(
    http: &Http,
    of: LimitArguments,
    json: bool,
) -> Result<Output, Failure> {
    let path = policies::path_of(&PolicyTarget::Action(of.action_ref.clone()));
    let shown: PolicyShown = match http.get(&path, &[]).await {
        Err(CallError::Refused(detail)) if detail.code == "UNKNOWN_POLICY" => {
            // There is no such action, or it says nothing: whichever, this tells.
            let path = format!("/actions/{}", of.action_ref);
            let _: ActionView = http.get(&path, &[]).await?;
            return Err(Failure::usage(detail.message));
        }
        shown => shown?,
    };
    let mut policy = policy_of(&shown)?;
    let earlier = std::mem::replace(&mut policy.concurrency.limit, of.limit.0);
    let query = [("who", Some(super::who(&of.who).to_owned()))];
    let body = json!({"policy": policy});
    // Whatever somebody else changes meanwhile is not to be undone by this.
    let version = shown.policy.version;
    let applied: PolicyApplied = http.put_over(&path, &query, version, &body).await?;
    let shown = |limit: Option<u32>| limit.map_or_else(|| "none".to_owned(), |it| it.to_string());
    let output = if json {
        Output::json(&applied)
    } else {
        Output::text(format!(
            "the limit of {} is {} (it was {})",
            of.action_ref,
            shown(of.limit.0),
            shown(earlier)
        ))
    };
    Ok(match (applied.applied, applied.pending_reason) {
        (InForce::Pending, Some(reason)) => {
            let note = format!("it is stored, and comes into force by itself: {reason}");
            output.with(Exit::Done, vec![note])
        }
        _ => output,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_they_are_written() {
        assert_eq!(limit("3").unwrap().0, Some(3));
        assert_eq!(limit("none").unwrap().0, None);
        assert!(limit("0").is_err() && limit("many").is_err());
    }
}
