//! `attune policy apply | check | diff | show | list | history | remove`.

use std::path::PathBuf;

use attune_api_types::{
    InForce, PolicyApplied, PolicyList, PolicyProgress, PolicyRequest, PolicyShown, PolicyVersions,
    PolicyView,
};
use attune_core::{PolicyDocument, PolicyScope, PolicyTarget};
use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use reqwest::Method;

use super::http::{CallError, Http};
use super::policy_file::read;
use super::render::{Column, duration, one_line, or_dash, table};
use super::{Connect, EXIT_CODES, Exit, Failure, NOBODY, Output, policy_diff};

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct PolicyArguments {
    #[command(flatten)]
    pub(super) connect: Connect,
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum PolicyCommand {
    /// Apply the documents of YAML or JSON files, all of them or none; or an older version of one again.
    // Its own `--version` is the version of a document.
    #[command(after_help = EXIT_CODES, disable_version_flag = true)]
    Apply {
        /// Files, or folders whose *.yaml, *.yml and *.json files are applied; with --version a scope and a target.
        #[arg(required = true, value_name = "FILE|DIR")]
        paths: Vec<PathBuf>,
        /// Apply this version of a document again: `attune policy apply --version 3 pack core`.
        #[arg(long, value_name = "N")]
        version: Option<i64>,
        #[command(flatten)]
        by: By,
    },
    /// Say whether the documents of files could be applied, and change nothing.
    #[command(after_help = EXIT_CODES)]
    Check {
        /// Files or folders, as for `apply`.
        #[arg(required = true, value_name = "FILE|DIR")]
        paths: Vec<PathBuf>,
    },
    /// Say what applying files would change of what is in force, field by field; or what two versions of a
    /// document say differently.
    #[command(after_help = policy_diff::EXIT_CODES)]
    Diff {
        /// Files or folders, as for `apply`; with --from a scope and a target.
        #[arg(required = true, value_name = "FILE|DIR")]
        paths: Vec<PathBuf>,
        /// Compare this version of a document: `attune policy diff --from 1 --to 3 pack core`.
        #[arg(long, value_name = "N")]
        from: Option<i64>,
        /// With that version of it; the newest unless given.
        #[arg(long, value_name = "N", requires = "from")]
        to: Option<i64>,
    },
    /// Show a document as a file that could be applied, and whether it is in force.
    #[command(after_help = EXIT_CODES)]
    Show(Named),
    /// List the documents of all actions, packs and users.
    #[command(after_help = EXIT_CODES)]
    List,
    /// List the versions of a document, the newest first: who changed it, when and why.
    #[command(after_help = EXIT_CODES)]
    History(Named),
    /// Take a document back. An action has no policy of its own then: no limit, whatever it was applied with.
    #[command(after_help = EXIT_CODES)]
    Remove {
        #[command(flatten)]
        of: Named,
        #[command(flatten)]
        by: By,
    },
}

/// A document.
#[derive(Debug, Clone, Args)]
struct Named {
    /// `global`, `pack`, `action` or `user`.
    #[arg(value_name = "SCOPE")]
    scope: PolicyScope,
    /// The pack, the action's ref or the user; `global` has none.
    #[arg(value_name = "TARGET", default_value = "")]
    target: String,
}

#[derive(Debug, Clone, Args)]
struct By {
    /// Why, for the versions of the document and the audit log.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Who does it, likewise.
    #[arg(long, env = "USER", value_name = "NAME", default_value = NOBODY)]
    who: String,
}

impl Named {
    fn target(&self) -> Result<PolicyTarget, Failure> {
        let target = PolicyTarget::of(self.scope, &self.target);
        target.map_err(|reject| Failure::usage(reject.message))
    }
}

/// The path of a document; a user may have any name.
pub(super) fn path_of(target: &PolicyTarget) -> String {
    let mut name = String::new();
    for byte in target.name().bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                name.push(char::from(byte));
            }
            other => name.push_str(&format!("%{other:02X}")),
        }
    }
    match target {
        PolicyTarget::Global => "/policies/global".to_owned(),
        other => format!("/policies/{}/{name}", other.scope().as_str()),
    }
}

pub(super) async fn execute(http: &Http, arguments: PolicyArguments) -> Result<Output, Failure> {
    let json = arguments.connect.json;
    match arguments.command {
        PolicyCommand::Apply {
            paths,
            version: Some(version),
            by,
        } => apply_again(http, &paths, version, by, json).await,
        PolicyCommand::Apply { paths, by, .. } => {
            let request = request(read(&paths).map_err(not_applied)?, by);
            let applied = post(http, &request, false).await;
            Ok(output(&applied.map_err(not_applied)?, json))
        }
        PolicyCommand::Check { paths } => {
            let (checked, many) = checked(http, &paths).await?;
            Ok(match json {
                true => Output::json(&checked),
                false => Output::text(format!(
                    "{many} could be applied, {} of them would change something",
                    checked.others
                )),
            })
        }
        PolicyCommand::Diff {
            paths,
            from: Some(from),
            to,
        } => policy_diff::versions(http, &paths, from, to, json).await,
        PolicyCommand::Diff { paths, .. } => policy_diff::files(http, &paths, json).await,
        PolicyCommand::Show(of) => show(http, &of.target()?, json).await,
        PolicyCommand::List => list(http, json).await,
        PolicyCommand::History(of) => history(http, &of.target()?, json).await,
        PolicyCommand::Remove { of, by } => {
            let target = of.target()?;
            let who = Some(super::who(&by.who).to_owned());
            let query = [("who", who), ("reason", by.reason)];
            let removed: PolicyApplied = http.delete(&path_of(&target), &query).await?;
            let mut output = output(&removed, json);
            if let PolicyTarget::Action(action_ref) = target
                && !removed.changed.is_empty()
            {
                // Beside the one that says where it is not in force yet.
                output.problems.push(format!(
                    "{action_ref} has no limit now, nor anything else but what it inherits: `attune policy \
                     apply --version N action {action_ref}` brings an older policy back"
                ));
            }
            Ok(output)
        }
    }
}

/// Says of what was refused that nothing of it is in force, also of the documents beside what is wrong.
fn not_applied(failure: Failure) -> Failure {
    let message = match failure.exit {
        Exit::Refused => format!("nothing was applied\n{}", failure.message),
        _ => failure.message,
    };
    Failure { message, ..failure }
}

fn request(documents: Vec<PolicyDocument>, by: By) -> PolicyRequest {
    PolicyRequest {
        documents,
        reason: by.reason,
        who: Some(super::who(&by.who).to_owned()),
    }
}

/// What the server says of the documents of files without storing them, and how many there are.
pub(super) async fn checked(
    http: &Http,
    paths: &[PathBuf],
) -> Result<(PolicyApplied, usize), Failure> {
    let by = By {
        reason: None,
        who: String::new(),
    };
    let request = request(read(paths)?, by);
    let checked = post(http, &request, true).await?;
    Ok((checked, request.documents.len()))
}

async fn post(
    http: &Http,
    request: &PolicyRequest,
    dry_run: bool,
) -> Result<PolicyApplied, Failure> {
    let path = match dry_run {
        true => "/policies?dry_run=true",
        false => "/policies",
    };
    let call = http.request(Method::POST, path).json(request);
    http.send(call).await.map_err(|error| {
        let of = refused_of(&error, &request.documents);
        let failure = Failure::from(error);
        let message = match of {
            Some(target) => format!("{target}: {}", failure.message),
            None => failure.message,
        };
        Failure { message, ..failure }
    })
}

/// Of which document a refusal is, where it is of one of several.
fn refused_of(error: &CallError, documents: &[PolicyDocument]) -> Option<PolicyTarget> {
    let CallError::Refused(detail) = error else {
        return None;
    };
    let place = detail.field.as_deref()?.strip_prefix("documents.")?;
    let number: usize = place.split('.').next()?.parse().ok()?;
    let (target, _) = documents.get(number)?.read().ok()?;
    Some(target)
}

/// The document that words in the place of files name.
pub(super) fn named(words: &[PathBuf], usage: &str) -> Result<PolicyTarget, Failure> {
    let words: Vec<String> = words
        .iter()
        .map(|word| word.display().to_string())
        .collect();
    let (scope, target) = match words.as_slice() {
        [scope] => (scope, ""),
        [scope, target] => (scope, target.as_str()),
        _ => {
            let words = format!("with a version name one document: {usage}");
            return Err(Failure::usage(words));
        }
    };
    let scope: PolicyScope = scope.parse().map_err(Failure::usage)?;
    PolicyTarget::of(scope, target).map_err(|it| Failure::usage(it.message))
}

/// A version of a document; a scope and a target that have none of that number are wrong usage.
pub(super) async fn version_of(
    http: &Http,
    target: &PolicyTarget,
    version: i64,
) -> Result<PolicyView, Failure> {
    let query = [
        ("before", Some((version.saturating_add(1)).to_string())),
        ("limit", Some("1".to_owned())),
    ];
    let path = format!("{}/versions", path_of(target));
    let page: PolicyVersions = http.get(&path, &query).await?;
    let found = page.versions.into_iter().find(|it| it.version == version);
    found.ok_or_else(|| {
        Failure::usage(format!(
            "there is no version {version} of {target} (`attune policy history` lists them; old ones are \
             forgotten)"
        ))
    })
}

async fn apply_again(
    http: &Http,
    words: &[PathBuf],
    version: i64,
    by: By,
    json: bool,
) -> Result<Output, Failure> {
    let target = named(words, "attune policy apply --version N SCOPE TARGET")?;
    let found = version_of(http, &target, version).await?;
    let document = found.document.ok_or_else(|| {
        let words = format!(
            "with version {version} {target} was taken back: `attune policy remove` does that"
        );
        Failure::usage(words)
    })?;
    let request = request(vec![document], by);
    let applied = post(http, &request, false).await?;
    Ok(output(&applied, json))
}

fn output(applied: &PolicyApplied, json: bool) -> Output {
    let output = match json {
        true => Output::json(applied),
        false => Output::text(said(applied)),
    };
    match (applied.applied, &applied.pending_reason) {
        (InForce::Pending, Some(reason)) => {
            let note = format!(
                "it is stored, {}, and comes into force by itself: {}",
                in_force(&applied.in_force),
                one_line(reason)
            );
            output.with(Exit::Done, vec![note])
        }
        _ => output,
    }
}

fn said(applied: &PolicyApplied) -> String {
    if applied.changed.is_empty() {
        return format!("nothing to change; {}", in_force(&applied.in_force));
    }
    let rows = applied.changed.iter().map(|version| {
        let told = applied.differences.iter();
        let mut told =
            told.filter(|of| (&of.scope, &of.target) == (&version.scope, &version.target));
        let result = told
            .next()
            .map_or("changed", |of| policy_diff::word(of.result));
        vec![
            version.scope.clone(),
            or_dash(version.target.clone()),
            result.to_owned(),
            version.version.to_string(),
        ]
    });
    let columns = [
        Column::Words("scope"),
        Column::Words("target"),
        Column::Words("result"),
        Column::Figures("version"),
    ];
    let table = table(&columns, rows.collect());
    let mut text = format!("{}\n", table.trim_end());
    if !applied.differences.is_empty() {
        let fields = policy_diff::fields_table(&applied.differences);
        text.push_str(&format!("{}\n", fields.trim_end()));
    }
    text.push_str(&in_force(&applied.in_force));
    text
}

fn in_force(progress: &PolicyProgress) -> String {
    format!(
        "in force in {} of {} partitions",
        progress.in_force_in, progress.partitions
    )
}

async fn show(http: &Http, target: &PolicyTarget, json: bool) -> Result<Output, Failure> {
    let shown: PolicyShown = http.get(&path_of(target), &[]).await?;
    if json {
        return Ok(Output::json(&shown));
    }
    let policy = &shown.policy;
    let progress = shown.in_force.as_ref();
    let mut text = format!(
        "# version {}{}\n# {}\n",
        policy.version,
        progress.map_or_else(String::new, |progress| format!(", {}", in_force(progress))),
        by_line(policy)
    );
    text.push_str(&written(&policy.document));
    if let Some(effective) = &shown.effective {
        text.push_str("# with what it inherits:\n");
        for line in written(effective).lines() {
            text.push_str(&format!("#   {line}\n"));
        }
    }
    Ok(Output::text(text.trim_end()))
}

/// As YAML that could be applied.
fn written(document: &impl serde::Serialize) -> String {
    // By way of JSON: YAML's own form of a choice is a tag, which these files do not use.
    let value = serde_json::to_value(document).expect("a document has string keys");
    yaml_serde::to_string(&value).expect("JSON is YAML")
}

fn by_line(policy: &PolicyView) -> String {
    let reason = policy.reason.as_deref().map(one_line);
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    format!(
        "by {} at {}{reason}",
        one_line(&policy.who),
        policy.at.to_rfc3339()
    )
}

async fn list(http: &Http, json: bool) -> Result<Output, Failure> {
    let mut whole: PolicyList = http.get("/policies", &[]).await?;
    while let Some(after) = whole.next.take() {
        let page: PolicyList = http.get("/policies", &[("after", Some(after))]).await?;
        whole.policies.extend(page.policies);
        (whole.next, whole.in_force) = (page.next, page.in_force);
    }
    Ok(if json {
        Output::json(&whole)
    } else if whole.policies.is_empty() {
        Output::text(
            "there are no documents; those of actions stand in the actions (`attune action list`)",
        )
    } else {
        let table = versions_table(&whole.policies, Utc::now());
        Output::text(format!(
            "{}\n{}",
            table.trim_end(),
            in_force(&whole.in_force)
        ))
    })
}

async fn history(http: &Http, target: &PolicyTarget, json: bool) -> Result<Output, Failure> {
    let path = format!("{}/versions", path_of(target));
    let mut whole: PolicyVersions = http.get(&path, &[]).await?;
    while let Some(before) = whole.next.take() {
        let query = [("before", Some(before.to_string()))];
        let page: PolicyVersions = http.get(&path, &query).await?;
        whole.versions.extend(page.versions);
        whole.next = page.next;
    }
    Ok(if json {
        Output::json(&whole)
    } else if whole.versions.is_empty() {
        Output::text(format!("nothing was ever said of {target}"))
    } else {
        Output::text(versions_table(&whole.versions, Utc::now()))
    })
}

fn versions_table(versions: &[PolicyView], now: DateTime<Utc>) -> String {
    let rows = versions.iter().map(|version| {
        vec![
            version.scope.clone(),
            or_dash(version.target.clone()),
            version.version.to_string(),
            or_dash(version.set_version.map(|it| it.to_string())),
            duration(now - version.at),
            version.who.clone(),
            match version.document {
                Some(_) => version.reason.clone().unwrap_or_default(),
                None => format!("removed {}", version.reason.as_deref().unwrap_or_default()),
            },
        ]
    });
    let columns = [
        Column::Words("scope"),
        Column::Words("target"),
        Column::Figures("version"),
        Column::Figures("set"),
        Column::Figures("ago"),
        Column::Words("who"),
        Column::Words("reason"),
    ];
    table(&columns, rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_may_have_any_name() {
        let path = |name: &str| path_of(&PolicyTarget::of(PolicyScope::User, name).unwrap());
        assert_eq!(path("ann"), "/policies/user/ann");
        assert_eq!(path("*"), "/policies/user/%2A");
        assert_eq!(path("a/b c?ü"), "/policies/user/a%2Fb%20c%3F%C3%BC");
        assert_eq!(path_of(&PolicyTarget::Global), "/policies/global");
    }

    #[test]
    fn a_refusal_of_one_of_several_documents_says_which() {
        let document = |text: &str| serde_json::from_str::<PolicyDocument>(text).unwrap();
        let documents = [
            document(r#"{"scope":"global","action_defaults":{}}"#),
            document(r#"{"scope":"pack","target":"acme","action_defaults":{}}"#),
        ];
        let of = |field: &str| {
            let detail =
                serde_json::json!({"code": "INVALID_INPUT", "message": "m", "field": field});
            let detail = serde_json::from_value(detail).unwrap();
            let target = refused_of(&CallError::Refused(detail), &documents);
            target.map(|it| it.to_string())
        };
        assert_eq!(of("documents.1.target").as_deref(), Some("pack acme"));
        for field in ["documents.2.target", "documents.x", "reason"] {
            assert_eq!(of(field), None, "{field}");
        }
    }
}
