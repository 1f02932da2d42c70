//! The commands against a small server on loopback.

mod hostile;
mod operations;
mod pauses;
mod server;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use attune_api_types::{Execution, HealthState, QueueHealth, QueueView};
use attune_core::{ActionId, Attempt, ExecutionId, Priority, RequestId, Status};
use chrono::{DateTime, TimeDelta};
use clap::{CommandFactory, Parser};
use serde_json::{Value, json};

use self::server::{Shared, start};
use super::{ClientCommand, Exit, Failure, Output, execute};

/// An execution that has just been accepted.
pub(super) fn record(id: i64, status: Status) -> Execution {
    Execution {
        id: ExecutionId(id),
        action_id: ActionId(1),
        action_ref: "core.echo".to_owned(),
        status,
        priority: Priority::Normal,
        attempt: Attempt(1),
        grant_no: None,
        request_id: RequestId::fresh(),
        enforcement_id: None,
        requested_by: None,
        group: None,
        labels: BTreeMap::new(),
        parameters: Some(json!({})),
        not_before: None,
        timeout_seconds: None,
        cancel_requested: false,
        worker: None,
        created: DateTime::from_timestamp(1_800_000_000, 0).unwrap(),
        requested_at: None,
        started_at: None,
        finished_at: None,
        result: Some(None),
        end_code: None,
        error: None,
        exit_code: None,
        stdout: Some(None),
        stderr: Some(None),
        requeue_of: None,
        last_error: None,
        trace_id: None,
    }
}

/// A queue, a tenth full, whose oldest has waited 65 s.
pub(super) fn queue(length: u64, active: u64, limit: Option<u32>) -> QueueView {
    let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
    QueueView {
        action_ref: "core.echo".to_owned(),
        action_id: ActionId(1),
        queue_length: length,
        active_count: active,
        max_concurrent: limit,
        oldest_enqueued_at: Some(now - TimeDelta::seconds(65)),
        total_enqueued: 20,
        total_completed: 6,
        total_cancelled: 0,
        total_expired: 0,
        last_updated: Some(now),
        as_of: Some(now),
        age_ms: Some(1200),
        max_length: 100,
        timeout_seconds: 60,
        pauses: Vec::new(),
        health: QueueHealth {
            state: HealthState::Degraded,
            reasons: vec![format!("a tenth full or more: {length} of 100")],
        },
    }
}

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: ClientCommand,
}

/// Runs a command line against the server at `url`.
async fn attune(url: &str, line: &str) -> Result<Output, Failure> {
    let patience = if line.contains("--connect-timeout") {
        ""
    } else {
        " --connect-timeout 0"
    };
    let words = format!("attune {line} --url {url}{patience}");
    let parsed = Line::try_parse_from(words.split(' '))
        .map_err(|it| it.to_string())
        .unwrap();
    execute(parsed.command).await
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn the_command_line_is_sound_and_documents_its_exit_codes() {
    Line::command().debug_assert();
    let mut command = Line::command();
    for path in [
        &["submit"][..],
        &["queues"],
        &["action", "apply"],
        &["executions", "cancel"],
        &["executions", "front"],
        &["queues", "clear"],
        &["operations", "list"],
        &["operations", "show"],
        &["executions", "resubmit"],
        &["dead-letters", "requeue"],
    ] {
        let found = path.iter().fold(&mut command, |command, name| {
            command
                .find_subcommand_mut(name)
                .expect("the command exists")
        });
        let help = found.render_long_help().to_string();
        assert!(help.contains("Exit codes:"), "{path:?}");
    }
}

#[tokio::test]
async fn submit_tells_where_it_stands() {
    let (_, url) = start().await;
    let output = attune(&url, "submit core.echo -p message=hi")
        .await
        .unwrap();
    assert_eq!(output.text, "execution 1 is queued, 0 before it");
    let output = attune(&url, "submit core.echo --json --key k")
        .await
        .unwrap();
    let answer: Value = serde_json::from_str(&output.text).unwrap();
    assert_eq!(answer["id"], 2);
    let refused = attune(&url, "submit core.gone").await.unwrap_err();
    assert_eq!(refused.exit, Exit::Refused);
    assert_eq!(
        refused.message,
        "UNKNOWN_ACTION says the server [UNKNOWN_ACTION]"
    );
}

#[tokio::test]
async fn submit_waits_for_an_executor_that_is_coming_up() {
    let (server, url) = start().await;
    server.lock().unwrap().ownerless = 2;
    let failure = attune(&url, "submit core.echo").await.unwrap_err();
    assert_eq!(failure.exit, Exit::Unknown, "{failure:?}");
    let line = "submit core.echo --connect-timeout 60";
    let output = attune(&url, line).await.unwrap();
    assert_eq!(output.text, "execution 1 is queued, 0 before it");
    let server = server.lock().unwrap();
    assert_eq!((server.ownerless, server.accepted.len()), (0, 1));
}

#[tokio::test]
async fn wait_prints_the_result_and_exits_by_the_outcome() {
    let (server, url) = start().await;
    let mut end = record(1, Status::Succeeded);
    end.result = Some(Some(json!({"message": "hi"})));
    server.lock().unwrap().end = Some(end);
    let output = attune(&url, "submit core.echo --wait --timeout 30")
        .await
        .unwrap();
    assert_eq!(output.exit, Exit::Done);
    assert_eq!(
        serde_json::from_str::<Value>(&output.text).unwrap(),
        json!({"message": "hi"})
    );

    let mut end = record(2, Status::Failed);
    (end.exit_code, end.stderr) = (Some(3), Some(Some("boom\n".to_owned())));
    server.lock().unwrap().end = Some(end);
    let output = attune(&url, "submit core.echo --wait").await.unwrap();
    assert_eq!(
        (output.exit, output.text.as_str()),
        (Exit::NotSucceeded, "")
    );
    assert_eq!(
        output.problems,
        ["execution 2 failed, exit code 3", "its stderr:\nboom"]
    );

    server.lock().unwrap().end = None;
    for seconds in [0, 1] {
        let started = Instant::now();
        let line = format!("submit core.echo --wait --timeout {seconds}");
        let late = attune(&url, &line).await.unwrap_err();
        assert_eq!(late.exit, Exit::Unknown);
        assert!(
            started.elapsed() >= Duration::from_secs(seconds),
            "gave up after {:?} of {seconds} s",
            started.elapsed()
        );
        assert!(late.message.ends_with("it goes on"), "{}", late.message);
    }
    server.lock().unwrap().overloaded = true;
    let line = "submit core.echo --wait --timeout 0";
    let unseen = attune(&url, line).await.unwrap_err();
    assert_eq!(unseen.exit, Exit::Unknown);
    let words = "was accepted; whether it has ended after 0 s is unknown: ";
    assert!(unseen.message.contains(words), "{}", unseen.message);
}

#[tokio::test]
async fn without_a_server_the_exit_code_is_3() {
    // A port that was free a moment ago.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let folder = tempfile::tempdir().unwrap();
    let file = write(
        folder.path(),
        "batch.jsonl",
        r#"{"action_ref":"core.echo"}"#,
    );
    for line in [
        "submit core.echo",
        "queues",
        "executions list",
        &format!("submit --file {file}"),
    ] {
        let failure = attune(&url, line).await.unwrap_err();
        assert_eq!(failure.exit, Exit::Unknown, "{line}");
        assert!(
            failure.message.contains("is it running?"),
            "{}",
            failure.message
        );
    }
    assert_eq!(
        attune("ftp://x", "queues").await.unwrap_err().exit,
        Exit::Refused
    );
}

/// 250 lines of three actions; line `n` has the parameter `n`.
fn batch_file(folder: &Path) -> String {
    let lines: Vec<String> = (0..250)
        .map(|n| {
            let action = ["a", "b", "c"][n % 3];
            json!({"action_ref": format!("demo.{action}"), "parameters": {"n": n}}).to_string()
        })
        .collect();
    write(folder, "batch.jsonl", &lines.join("\n"))
}

/// Checks that every line was accepted once, and in order within each action.
fn all_accepted_in_order(server: &Shared) {
    let server = server.lock().unwrap();
    assert_eq!(server.accepted.len(), 250);
    let mut last: HashMap<&str, i64> = HashMap::new();
    for item in &server.accepted {
        let n = item["parameters"]["n"].as_i64().unwrap();
        let before = last.insert(item["action_ref"].as_str().unwrap(), n);
        assert!(
            before.is_none_or(|before| before < n),
            "{n} after {before:?}"
        );
    }
}

#[tokio::test]
async fn a_file_is_submitted_in_order() {
    let (server, url) = start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = batch_file(folder.path());
    let output = attune(&url, &format!("submit --file {file}"))
        .await
        .unwrap();
    assert_eq!((output.exit, output.problems.len()), (Exit::Done, 0));
    assert!(output.text.contains("250 accepted"), "{}", output.text);
    all_accepted_in_order(&server);
}

#[tokio::test]
async fn lines_that_find_the_queue_full_are_sent_again() {
    let (server, url) = start().await;
    server.lock().unwrap().room_per_call = Some(7);
    let folder = tempfile::tempdir().unwrap();
    let file = batch_file(folder.path());
    let output = attune(&url, &format!("submit --file {file} --json"))
        .await
        .unwrap();
    assert_eq!(output.exit, Exit::Done, "{:?}", output.problems);
    let document: Value = serde_json::from_str(&output.text).unwrap();
    assert_eq!(document["accepted"], 250);
    assert_eq!(document["results"].as_array().unwrap().len(), 250);
    all_accepted_in_order(&server);
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_under_the_same_ids() {
    let (server, url) = start().await;
    server.lock().unwrap().lose_answers = 2;
    let folder = tempfile::tempdir().unwrap();
    let file = batch_file(folder.path());
    let line = format!("submit --file {file} --json --key nightly");
    let output = attune(&url, &line).await.unwrap();
    let document: Value = serde_json::from_str(&output.text).unwrap();
    assert_eq!(
        (&document["accepted"], output.exit),
        (&json!(250), Exit::Done)
    );
    all_accepted_in_order(&server);
    // The whole file once more under the same key: nothing is new.
    let again = attune(&url, &line).await.unwrap();
    let document: Value = serde_json::from_str(&again.text).unwrap();
    assert_eq!(document["repeated"], 250);
    all_accepted_in_order(&server);
}

#[tokio::test]
async fn refused_lines_are_named_and_the_others_go_through() {
    let (server, url) = start().await;
    let folder = tempfile::tempdir().unwrap();
    let text = "{\"action_ref\":\"demo.a\"}\n\n{\"action_ref\":\"core.gone\"}\n{\"action_ref\":\"demo.b\"}\n";
    let file = write(folder.path(), "batch.jsonl", text);
    let output = attune(&url, &format!("submit --file {file}"))
        .await
        .unwrap();
    assert_eq!(output.exit, Exit::Refused);
    assert_eq!(
        output.problems,
        ["line 3: UNKNOWN_ACTION says the server [UNKNOWN_ACTION]"]
    );
    assert_eq!(server.lock().unwrap().accepted.len(), 2);

    server.lock().unwrap().room_per_call = Some(0);
    let output = attune(&url, &format!("submit --file {file} --give-up-after 0"))
        .await
        .unwrap();
    assert_eq!(
        (output.exit, output.problems.len()),
        (Exit::Refused, 3),
        "{output:?}"
    );
}

#[tokio::test]
async fn nothing_is_submitted_when_a_line_cannot_be_read() {
    let (server, url) = start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = write(
        folder.path(),
        "batch.jsonl",
        "{\"action_ref\":\"demo.a\"}\noops\n",
    );
    let failure = attune(&url, &format!("submit --file {file}"))
        .await
        .unwrap_err();
    assert_eq!(failure.exit, Exit::Refused);
    assert!(
        failure.message.contains("line 2: not JSON"),
        "{}",
        failure.message
    );
    assert!(server.lock().unwrap().accepted.is_empty());
}

#[tokio::test]
async fn apply_reads_everything_first_and_shows_what_changed() {
    let (server, url) = start().await;
    let folder = tempfile::tempdir().unwrap();
    let action = |name: &str, rest: &str| format!("ref: {name}\nrun: {{builtin: noop}}\n{rest}\n");
    let good = format!(
        "{}---\n{}",
        action("demo.a", "policy: {concurrency: {limit: 2}}"),
        action("demo.b", "description: pending")
    );
    write(folder.path(), "1.yaml", &good);
    let line = format!("action apply {}", folder.path().display());
    let output = attune(&url, &line).await.unwrap();
    let rows: Vec<Vec<&str>> = output
        .text
        .lines()
        .map(|row| row.split_whitespace().collect())
        .collect();
    assert_eq!(rows[1], ["demo.a", "created", "2", "now"]);
    let by_ann = attune(&url, &format!("{line} --who ann")).await.unwrap();
    assert!(by_ann.text.contains("unchanged"), "{by_ann:?}");
    assert_eq!(server.lock().unwrap().changed_by.as_deref(), Some("ann"));
    assert_eq!(rows[2], ["demo.b", "created", "unlimited", "pending"]);
    assert_eq!(
        output.problems,
        [
            "demo.b is stored and not in force yet: nobody owns it. Nothing is to be repeated: it \
             comes into force by itself, within executor.reconcile.interval_seconds (10) as long \
             as an executor runs"
        ]
    );
    assert_eq!(output.exit, Exit::Done);
    assert!(
        attune(&url, &line)
            .await
            .unwrap()
            .text
            .contains("unchanged")
    );

    write(
        folder.path(),
        "2.yaml",
        &action("demo.c", "description: refuse"),
    );
    // The server refuses one: nothing is applied.
    server.lock().unwrap().actions.clear();
    let refused = attune(&url, &line).await.unwrap_err();
    assert_eq!(refused.exit, Exit::Refused);
    assert!(
        refused.message.starts_with("nothing was applied\n")
            && refused.message.contains("2.yaml, document 1: demo.c: "),
        "{refused:?}"
    );
    assert!(server.lock().unwrap().actions.is_empty());

    // One bad document among good ones, and one action twice: nothing is applied.
    write(folder.path(), "2.yaml", "ref: demo.c\n");
    write(folder.path(), "3.yaml", &action("demo.a", ""));
    let failure = attune(&url, &line).await.unwrap_err();
    assert!(
        failure
            .message
            .contains("2.yaml, document 1: missing field `run`"),
        "{failure:?}"
    );
    assert!(failure.message.contains("demo.a is also in"), "{failure:?}");
    assert!(server.lock().unwrap().actions.is_empty());
}

#[tokio::test]
async fn lists_follow_pages_up_to_the_limit() {
    let (server, url) = start().await;
    server.lock().unwrap().accepted = vec![Value::Null; 120];
    // The server allows pages of 100, so the large page is refused first.
    let output = attune(&url, "executions list --all --json").await.unwrap();
    let document: Value = serde_json::from_str(&output.text).unwrap();
    let ids: Vec<i64> = document["executions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["id"].as_i64().unwrap())
        .collect();
    assert_eq!(ids, (1..=120).collect::<Vec<_>>());
    let output = attune(&url, "executions list --limit 60").await.unwrap();
    assert_eq!(output.text.lines().count(), 62);
    assert!(
        output
            .text
            .ends_with("(there are more: --limit N or --all)"),
        "{}",
        output.text
    );
}

#[tokio::test]
async fn a_list_of_an_unknown_action_is_refused() {
    let (_, url) = start().await;
    let line = "executions list --action core.gone";
    let refused = attune(&url, line).await.unwrap_err();
    assert_eq!(refused.exit, Exit::Refused);
    assert!(refused.message.contains("UNKNOWN_ACTION"), "{refused:?}");
    // An action that is known and has nothing is no mistake.
    let output = attune(&url, "executions list --action core.echo").await;
    assert_eq!(output.unwrap().exit, Exit::Done);
}

#[tokio::test]
async fn cancelling_several_tells_each() {
    let (_, url) = start().await;
    let output = attune(&url, "executions cancel 1 2 4 3").await.unwrap();
    assert_eq!(
        output.text,
        "execution 1 is cancelled\nexecution 2 is being ended (running)\nexecution 4 is marked \
         (requested): it ends when a worker takes it up, without being run; where none will come, \
         take its slot back: attune executions release 4 --reason TEXT"
    );
    assert_eq!(output.exit, Exit::Refused);
    assert_eq!(output.problems.len(), 1);
    assert!(
        output.problems[0].starts_with("cannot cancel 3: "),
        "{output:?}"
    );
}

#[tokio::test]
async fn resubmitting_several_tells_each() {
    let (server, url) = start().await;
    let output = attune(&url, "executions resubmit 7 3 9 --key k").await;
    let output = output.unwrap();
    assert_eq!(
        output.text,
        "execution 7 runs again as 1, which is queued\nexecution 9 runs again as 2, which is queued"
    );
    assert_eq!(output.exit, Exit::Refused);
    assert_eq!(output.problems.len(), 1, "{output:?}");
    assert!(output.problems[0].starts_with("cannot run 3 again: "));
    let output = attune(&url, "executions resubmit 7 --key k --json").await;
    let answer: Value = serde_json::from_str(&output.unwrap().text).unwrap();
    let answer = &answer["resubmitted"][0];
    assert_eq!(
        (&answer["id"], &answer["requeue_of"]),
        (&json!(1), &json!(7))
    );
    assert_eq!(answer["repeated"], true);
    assert_eq!(server.lock().unwrap().accepted.len(), 2);
}

#[tokio::test]
async fn resubmitting_by_options_counts_first_and_goes_by_age() {
    let (server, url) = start().await;
    for _ in 0..3 {
        attune(&url, "submit core.echo").await.unwrap();
    }
    let which = "executions resubmit --status failed,timed_out";
    let counted = attune(&url, &format!("{which} --dry-run")).await.unwrap();
    assert_eq!(counted.text, "3 executions would be run again");
    assert_eq!(server.lock().unwrap().accepted.len(), 3);
    let output = attune(&url, which).await.unwrap();
    // The list has the newest first, which this server calls 1.
    assert_eq!(output.text.lines().count(), 2, "{output:?}");
    assert!(
        output
            .text
            .ends_with("execution 1 runs again as 5, which is queued")
    );
    assert!(output.problems[0].contains("NOT_ENDED"), "{output:?}");
    let waiting = attune(&url, "executions resubmit --status queued").await;
    let message = waiting.unwrap_err().message;
    assert!(message.contains("has ended"), "{message}");
}
