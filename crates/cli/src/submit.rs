//! `attune submit`: one execution, optionally with the wait for its end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use attune_api_types::{Execution, Submitted};
use attune_core::strict::Strict;
use attune_core::{ActionRef, Priority, RequestId, Source, Status, Submission};
use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use clap::Args;
use reqwest::Method;
use serde::Deserialize as _;
use serde_json::value::RawValue;

use super::http::{CallError, Http, IDEMPOTENCY_KEY};
use super::submit_wait::wait;
use super::{Connect, EXIT_CODES, Exit, Failure, Output, batch, bounded, render, seconds};

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct SubmitArguments {
    #[command(flatten)]
    pub(super) connect: Connect,
    /// The action to run, as in core.echo.
    #[arg(
        value_name = "REF",
        required_unless_present = "file",
        conflicts_with = "file"
    )]
    action_ref: Option<ActionRef>,
    /// A parameter; the value is JSON where it can be read as JSON, else text.
    #[arg(
        short = 'p',
        long = "param",
        value_name = "KEY=VALUE",
        conflicts_with = "file"
    )]
    param: Vec<String>,
    /// All parameters as a JSON object, or @FILE with one (@- reads stdin); -p adds to them.
    #[arg(long, value_name = "JSON|@FILE", conflicts_with = "file")]
    params: Option<String>,
    /// critical, high, normal, low or background.
    #[arg(long, conflicts_with = "file")]
    priority: Option<Priority>,
    /// For whom it runs.
    #[arg(long, conflicts_with = "file")]
    user: Option<String>,
    /// Where it comes from: interactive, api or background. The policy of the action can give it a
    /// priority by that.
    #[arg(long, conflicts_with = "file")]
    source: Option<Source>,
    /// A key that policies can group by, and by which it is listed.
    #[arg(long, conflicts_with = "file")]
    group: Option<String>,
    /// A label, by which policies can group, count and rank; may be given several times.
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "file")]
    label: Vec<String>,
    /// Start it no sooner than in so many seconds, which are whole.
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["file", "not_before"], value_parser = seconds::<u32>)]
    delay: Option<u32>,
    /// Start it no sooner than this time, as in 2026-11-22T18:00:00Z.
    #[arg(long, value_name = "TIME", conflicts_with = "file", value_parser = attune_core::read_time)]
    not_before: Option<DateTime<Utc>>,
    /// How long it may run, in whole seconds, in place of what the action says.
    #[arg(long, value_name = "SECONDS", conflicts_with = "file", value_parser = seconds::<u32>)]
    run_timeout: Option<u32>,
    /// Names the request: repeating it within 24 hours gives the same execution. With --file,
    /// the lines get keys made from this one, so that the same file can be submitted again.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Wait until the execution has ended, and print what it returned.
    #[arg(long, conflicts_with = "file")]
    wait: bool,
    /// Stop waiting after so many seconds (exit code 3); the execution goes on.
    #[arg(long, value_name = "SECONDS", requires = "wait", value_parser = seconds::<u64>)]
    timeout: Option<u64>,
    /// Submit every line of a file, each one submission in JSON, as in
    /// {"action_ref": "core.echo", "parameters": {"n": 1}, "priority": "high"}; `-` reads stdin.
    /// docs/PROTOCOL.md has all members, under `enforcement.created`.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Give a line up that is still refused after so many seconds, because its queue is full or
    /// the server is away.
    #[arg(long, value_name = "SECONDS", requires = "file", default_value_t = 300, value_parser = seconds::<u64>)]
    give_up_after: u64,
}

pub(super) async fn execute(http: &Http, arguments: SubmitArguments) -> Result<Output, Failure> {
    if let Some(key) = &arguments.key {
        attune_core::input::check_text("--key", key)
            .map_err(|reject| Failure::usage(reject.message))?;
        if !key.chars().all(|c| c.is_ascii_graphic() || c == ' ') {
            return Err(Failure::usage("`--key` takes visible ASCII characters"));
        }
    }
    if let Some(file) = &arguments.file {
        let options = batch::BatchOptions {
            key: arguments.key.as_deref().map(RequestId::from_key),
            give_up_after: Duration::from_secs(arguments.give_up_after),
            json: arguments.connect.json,
        };
        return batch::execute(http, file, options).await;
    }
    let submission = submission(&arguments).map_err(Failure::usage)?;
    let submitted = submit(http, &submission, arguments.key).await?;
    if arguments.wait {
        let timeout = arguments.timeout.map(Duration::from_secs);
        let record = wait(http, submitted.id, timeout).await?;
        return Ok(ended(&record, arguments.connect.json));
    }
    Ok(if arguments.connect.json {
        Output::json(&submitted)
    } else {
        let line = accepted_line(&submitted, submission.not_before);
        Output::text(line + &lowered(submission.priority, &submitted))
    })
}

/// The submission that the arguments describe.
fn submission(arguments: &SubmitArguments) -> Result<Submission, String> {
    let action_ref = arguments.action_ref.clone().ok_or("no action to run")?;
    let parameters = parameters(arguments.params.as_deref(), &arguments.param)?;
    let mut labels = BTreeMap::new();
    for label in &arguments.label {
        let (key, value) = split("--label", label)?;
        if labels.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(format!("the label `{key}` is given twice"));
        }
    }
    let submission = Submission {
        parameters,
        priority: arguments.priority,
        requested_by: arguments.user.clone(),
        source: arguments.source,
        group: arguments.group.clone(),
        labels,
        not_before: arguments.not_before.or_else(|| {
            let delay = arguments
                .delay
                .map(|delay| TimeDelta::seconds(i64::from(delay)));
            delay.map(|delay| Utc::now() + delay)
        }),
        timeout_seconds: arguments.run_timeout,
        ..Submission::new(action_ref.as_str())
    };
    submission.check().map_err(|reject| reject.message)?;
    Ok(submission)
}

/// The parameters, each value as it was written: a number with thirty digits stays one.
fn parameters(whole: Option<&str>, single: &[String]) -> Result<Box<RawValue>, String> {
    let mut parameters: BTreeMap<String, Box<RawValue>> = match whole {
        None => BTreeMap::new(),
        Some(text) => {
            let text = match text.strip_prefix('@') {
                Some("-") => bounded::read(std::io::stdin())
                    .map_err(|error| format!("--params @-: {error}"))?,
                Some(file) => bounded::read_file(file.as_ref())
                    .map_err(|error| format!("--params @{file}: {error}"))?,
                None => text.to_owned(),
            };
            object(&text).map_err(|error| format!("--params is not a JSON object: {error}"))?
        }
    };
    let mut seen = BTreeSet::new();
    for param in single {
        let (key, value) = split("-p", param)?;
        if !seen.insert(key) {
            return Err(format!("the parameter `{key}` is given twice"));
        }
        let value = RawValue::from_string(value.to_owned())
            .or_else(|_| serde_json::value::to_raw_value(value))
            .map_err(|error| format!("-p {key}: {error}"))?;
        parameters.insert(key.to_owned(), value);
    }
    serde_json::value::to_raw_value(&parameters).map_err(|error| error.to_string())
}

/// The members of an object, each once.
fn object(text: &str) -> serde_json::Result<BTreeMap<String, Box<RawValue>>> {
    let mut json = serde_json::Deserializer::from_str(text);
    let members = BTreeMap::deserialize(Strict(&mut json))?;
    json.end().map(|()| members)
}

fn split<'a>(flag: &str, text: &'a str) -> Result<(&'a str, &'a str), String> {
    text.split_once('=')
        .filter(|(key, _)| !key.is_empty())
        .ok_or_else(|| format!("`{text}` is not KEY=VALUE, as in {flag} message=hi"))
}

async fn submit(
    http: &Http,
    submission: &Submission,
    key: Option<String>,
) -> Result<Submitted, Failure> {
    // A key in any case, so that a lost answer can be repeated, here or by hand.
    let key = key.unwrap_or_else(|| RequestId::fresh().to_string());
    let request = http
        .request(Method::POST, "/executions")
        .header(IDEMPOTENCY_KEY, &key)
        .json(submission);
    http.send_when_up(request).await.map_err(|error| {
        let unknown = matches!(error, CallError::Unavailable(_) | CallError::Unknown(_));
        let mut failure = Failure::from(error);
        if unknown {
            failure
                .message
                .push_str(&format!("\nto try again safely, add --key {key}"));
        }
        failure
    })
}

/// What a policy has made of a priority that was asked for.
fn lowered(asked: Option<Priority>, submitted: &Submitted) -> String {
    match (asked, submitted.priority) {
        (Some(asked), Some(has)) if asked != has => {
            format!("; its priority is {has}, the highest that policies allow")
        }
        _ => String::new(),
    }
}

/// Whom a delayed one finds before it says nothing about when it starts.
fn accepted_line(submitted: &Submitted, not_before: Option<DateTime<Utc>>) -> String {
    let Submitted {
        id,
        status,
        position,
        repeated,
        ..
    } = submitted;
    let again = if *repeated { " (accepted before)" } else { "" };
    let queued = *status == Status::Queued;
    match (not_before.filter(|at| *at > Utc::now()), position) {
        // One that was accepted before has the time of its first request, which may be another.
        (Some(at), _) if queued && !repeated => {
            let at = at.to_rfc3339_opts(SecondsFormat::Secs, true);
            format!("execution {id} is {status}, starts no sooner than {at}")
        }
        (None, Some(waiting)) if queued => {
            format!("execution {id} is {status}, {waiting} before it{again}")
        }
        _ => format!("execution {id} is {status}{again}"),
    }
}

/// How an execution ended: what it returned goes to stdout, everything else to stderr.
fn ended(record: &Execution, json: bool) -> Output {
    let succeeded = record.status == Status::Succeeded;
    let exit = if succeeded {
        Exit::Done
    } else {
        Exit::NotSucceeded
    };
    if json {
        return Output::json(record).with(exit, Vec::new());
    }
    let text = match record.result.as_ref().and_then(Option::as_ref) {
        Some(serde_json::Value::String(text)) => text.clone(),
        Some(result) => serde_json::to_string_pretty(result).expect("a value is JSON"),
        None => String::new(),
    };
    let mut problems = Vec::new();
    if !succeeded {
        let took = match (record.started_at, record.finished_at) {
            (Some(start), Some(end)) => format!(" after {}", render::duration(end - start)),
            _ => String::new(),
        };
        let code = record
            .exit_code
            .map(|code| format!(", exit code {code}"))
            .unwrap_or_default();
        let error = record
            .error
            .as_ref()
            .map(|error| format!(": {}", render::one_line(error)))
            .unwrap_or_default();
        problems.push(format!(
            "execution {} {}{took}{code}{error}",
            record.id, record.status
        ));
        if let Some(stderr) = record
            .stderr
            .as_ref()
            .and_then(Option::as_ref)
            .filter(|stderr| !stderr.trim().is_empty())
        {
            problems.push(format!("its stderr:\n{}", stderr.trim_end()));
        }
    }
    Output::text(text).with(exit, problems)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use attune_core::ExecutionId;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: SubmitArguments,
    }

    fn read(line: &str) -> Result<Submission, String> {
        let words = ["submit"]
            .into_iter()
            .chain(line.split(' ').filter(|it| !it.is_empty()));
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        submission(&line.arguments)
    }

    #[test]
    fn values_are_json_where_they_can_be() {
        for (line, parameters) in [
            ("core.echo", "{}"),
            ("core.echo -p message=hi", r#"{"message":"hi"}"#),
            (
                "core.echo -p n=3 -p b=true -p l=[1,2]",
                r#"{"b":true,"l":[1,2],"n":3}"#,
            ),
            ("core.echo -p a=b=c -p e=", r#"{"a":"b=c","e":""}"#),
            (r#"core.echo -p s="3""#, r#"{"s":"3"}"#),
            (
                r#"core.echo --params {"a":1,"b":2} -p b=x"#,
                r#"{"a":1,"b":"x"}"#,
            ),
            (
                "core.echo -p big=123456789012345678901234567890",
                r#"{"big":123456789012345678901234567890}"#,
            ),
        ] {
            assert_eq!(read(line).unwrap().parameters.get(), parameters, "{line}");
        }
    }

    #[test]
    fn everything_else_goes_where_it_belongs() {
        let submission =
            read("core.echo --priority high --user ann --group g --label a=1 --label b=2").unwrap();
        assert_eq!(
            (submission.not_before, submission.timeout_seconds),
            (None, None)
        );
        assert_eq!(submission.priority, Some(Priority::High));
        assert_eq!(submission.requested_by.as_deref(), Some("ann"));
        assert_eq!(submission.group.as_deref(), Some("g"));
        assert_eq!(submission.labels.len(), 2);
    }

    #[test]
    fn a_start_can_be_delayed_and_a_run_bounded() {
        let submission = read("core.echo --not-before 2026-11-22T18:00:00Z --run-timeout 9");
        let submission = submission.unwrap();
        let at = submission.not_before.unwrap();
        assert_eq!(at.to_rfc3339(), "2026-11-22T18:00:00+00:00");
        assert_eq!(submission.timeout_seconds, Some(9));
        let before = Utc::now();
        let delayed = read("core.echo --delay 60").unwrap().not_before.unwrap();
        let delay = delayed - before;
        assert!((60..90).contains(&delay.num_seconds()), "{delay}");
    }

    #[test]
    fn mistakes_are_told_before_anything_is_sent() {
        for (line, problem) in [
            ("", "REF"),
            ("Core", "is not an action ref"),
            ("core.echo --file x", "cannot be used with"),
            ("core.echo --timeout 3", "--wait"),
            (
                "core.echo --wait --timeout 18446744073709551615",
                "31536000",
            ),
            (
                "core.echo --connect-timeout 18446744073709551615",
                "31536000",
            ),
            (
                "core.echo --delay 1 --not-before 2026-11-22T18:00:00Z",
                "cannot be used with",
            ),
            (
                "core.echo --delay 31536001",
                "whole seconds, from 0 to 31536000",
            ),
            ("core.echo --delay 5m", "whole seconds"),
            ("core.echo --run-timeout 1.5", "whole seconds"),
            (
                "core.echo --not-before tomorrow",
                "`tomorrow` is no time; write one such as `2026-01-31T09:30:00Z`",
            ),
            ("core.echo --not-before 2026-11-23", "is no time"),
            ("core.echo -p message", "not KEY=VALUE"),
            ("core.echo -p a=1 -p a=2", "given twice"),
            ("core.echo --label a=1 --label a=2", "given twice"),
            ("core.echo --params [1]", "not a JSON object"),
            (r#"core.echo --params {"a":1,"a":2}"#, "duplicate field `a`"),
            (r#"core.echo --params {"a":1}2"#, "trailing characters"),
            ("core.echo --params @/no/such/file", "/no/such/file"),
            ("core.echo --priority urgent", "urgent"),
            ("core.echo --label k=", "labels.k"),
        ] {
            let found = read(line).unwrap_err();
            assert!(found.contains(problem), "{line}: {found}");
        }
    }

    #[test]
    fn a_submission_is_told_in_one_line() {
        let mut submitted = Submitted {
            id: ExecutionId(7),
            status: Status::Queued,
            position: Some(3),
            repeated: false,
            priority: None,
            request_id: RequestId::fresh(),
        };
        let at = |text: &str| attune_core::read_time(text).ok();
        for not_before in [None, at("2020-01-31T09:30:00Z")] {
            assert_eq!(
                accepted_line(&submitted, not_before),
                "execution 7 is queued, 3 before it"
            );
        }
        let later = at("2999-01-31T09:30:00.5Z");
        assert_eq!(
            accepted_line(&submitted, later),
            "execution 7 is queued, starts no sooner than 2999-01-31T09:30:00Z"
        );
        submitted.repeated = true;
        assert_eq!(
            accepted_line(&submitted, later),
            "execution 7 is queued (accepted before)"
        );
        (submitted.status, submitted.repeated) = (Status::Requested, true);
        assert_eq!(
            accepted_line(&submitted, None),
            "execution 7 is requested (accepted before)"
        );
        submitted.priority = Some(Priority::High);
        assert_eq!(lowered(None, &submitted), "");
        assert_eq!(lowered(submitted.priority, &submitted), "");
        let said = lowered(Some(Priority::Critical), &submitted);
        assert_eq!(
            said,
            "; its priority is high, the highest that policies allow"
        );
    }
}
