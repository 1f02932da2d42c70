//! The runner on real programs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use attune_core::{
    ActionId, Attempt, Builtin, ExecutionId, Outcome, Resources, Run, Status, WorkerId,
};
use attune_messages::v2::Grant;
use attune_runtime::Counter;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::Instant;

use super::{Began, Ended, Keyless, Runner, Stop};
use crate::guard::Guard;
use crate::options::WorkerOptions;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) struct Bench {
    runner: Arc<Runner>,
    work_dir: TempDir,
}

pub(super) fn bench_with(change: impl FnOnce(&mut WorkerOptions)) -> Bench {
    let work_dir = tempfile::tempdir().unwrap();
    let mut options = WorkerOptions {
        work_dir: work_dir.path().join("runs"),
        output_max_bytes: 1000,
        kill_grace: Duration::from_millis(200),
        env_allow: vec!["PATH".to_owned()],
        ..WorkerOptions::default()
    };
    change(&mut options);
    Bench {
        runner: Arc::new(Runner::new(
            &options,
            Guard::start(Vec::new()),
            Counter::default(),
        )),
        work_dir,
    }
}

fn bench() -> Bench {
    bench_with(|_| {})
}

pub(super) fn request(run: Run, parameters: &Value) -> Grant {
    Grant {
        execution_id: ExecutionId(4711),
        attempt: Attempt(3),
        action_id: ActionId(7),
        action_ref: "test.run".to_owned(),
        parameters: serde_json::value::to_raw_value(parameters).unwrap(),
        run,
        timeout_seconds: 60,
        env: BTreeMap::new(),
        resources: Resources::default(),
        slots: None,
        traceparent: None,
    }
}

pub(super) fn builtin(builtin: Builtin, parameters: Value) -> Grant {
    request(Run::Builtin(builtin), &parameters)
}

/// A shell with a script of the test's own; the product never builds one.
fn script(text: &str) -> Grant {
    let argv = ["/bin/sh", "-c", text].map(str::to_owned);
    request(Run::Program(argv.into()), &json!({"greeting": "hé"}))
}

impl Bench {
    pub(super) async fn ended(&self, request: Grant, stop: Stop) -> Ended {
        let began = Arc::new(Began::now());
        let run = self.runner.run(&request, WorkerId::fresh(), began, stop);
        let ended = tokio::time::timeout(PATIENCE, run)
            .await
            .expect("the run never ended");
        let left = std::fs::read_dir(self.work_dir.path().join("runs"))
            .map_or(0, |entries| entries.count());
        assert_eq!(left, 0, "the run's folder is still there");
        ended
    }

    pub(super) fn keyless(&self) -> &Keyless {
        self.runner.keyless()
    }

    pub(super) async fn run(&self, request: Grant) -> Outcome {
        match self.ended(request, Stop::default()).await {
            Ended::Outcome(outcome) => outcome,
            ended => panic!("nobody ended it: {ended:?}"),
        }
    }
}

fn value(outcome: &Outcome) -> Value {
    serde_json::from_str(outcome.result.as_ref().expect("it has a result").get()).unwrap()
}

pub(super) fn error(outcome: &Outcome) -> &str {
    outcome.error.as_deref().expect("it has an error")
}

/// Whether a process is there and not a zombie that nobody has collected yet.
fn is_alive(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .starts_with(" Z")
    })
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "still not: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await; // poll
    }
}

#[tokio::test]
async fn noop_echo_and_fail_take_no_time() {
    let noop = bench()
        .runner
        .instant(&builtin(Builtin::Noop, json!({"a": 1})))
        .unwrap();
    assert_eq!(
        (noop.status, noop.result.is_none(), noop.error),
        (Status::Succeeded, true, None)
    );
    let echo = bench()
        .runner
        .instant(&builtin(Builtin::Echo, json!({"a": [1, "x"]})))
        .unwrap();
    assert_eq!(value(&echo), json!({"a": [1, "x"]}));
    let fail = bench()
        .runner
        .instant(&builtin(Builtin::Fail, json!({"message": "no"})))
        .unwrap();
    assert_eq!((fail.status, error(&fail)), (Status::Failed, "no"));
    let fail = bench()
        .runner
        .instant(&builtin(Builtin::Fail, json!({})))
        .unwrap();
    assert_eq!(error(&fail), "it was to fail");
    assert!(
        bench()
            .runner
            .instant(&builtin(Builtin::Sleep, json!({"seconds": 0})))
            .is_none()
    );
}

#[tokio::test]
async fn sleep_sleeps_and_refuses_what_is_no_time() {
    let bench = bench();
    let began = Instant::now();
    let outcome = bench
        .run(builtin(Builtin::Sleep, json!({"seconds": 0.05})))
        .await;
    assert_eq!(outcome.status, Status::Succeeded);
    assert!(began.elapsed() >= Duration::from_millis(50));
    for (parameters, problem) in [
        (json!({"seconds": -1}), "`seconds` is -1"),
        (json!({"seconds": 1e300}), "`seconds` is"),
        (
            json!({}),
            "the parameters do not fit test.run: missing field `seconds`",
        ),
    ] {
        let outcome = bench.run(builtin(Builtin::Sleep, parameters)).await;
        assert_eq!(outcome.status, Status::Failed);
        assert!(error(&outcome).starts_with(problem), "{outcome:?}");
    }
}

#[tokio::test]
async fn a_program_gets_its_parameters_and_nothing_of_the_workers_environment() {
    let bench = bench();
    let mut request = script(
        "cat; echo; cat \"$ATTUNE_PARAMETERS_FILE\"; echo; stat -c %a \"$ATTUNE_PARAMETERS_FILE\"; \
         stat -c %a .; env | sed 's/=.*RUNS.*/=file/' | sort; exit 0",
    );
    request
        .env
        .insert("ATTUNE_ATTEMPT".to_owned(), "forged".into());
    request.env.insert("COLOUR".to_owned(), "blue".into());
    let outcome = bench.run(request).await;
    let stdout = outcome.stdout.as_deref().unwrap();
    let mut lines = stdout.lines();
    assert_eq!(lines.next(), Some(r#"{"greeting":"hé"}"#));
    assert_eq!(lines.next(), Some(r#"{"greeting":"hé"}"#));
    assert_eq!((lines.next(), lines.next()), (Some("400"), Some("700")));
    let names: Vec<_> = lines
        .clone()
        .map(|line| line.split('=').next().unwrap())
        .collect();
    let expected = [
        "ATTUNE_ACTION",
        "ATTUNE_ATTEMPT",
        "ATTUNE_EXECUTION_ID",
        "ATTUNE_GUARD",
        "ATTUNE_PARAMETERS_FILE",
        "COLOUR",
        "PATH",
        "PWD",
    ];
    assert_eq!(names, expected);
    for line in [
        "ATTUNE_ACTION=test.run",
        "ATTUNE_ATTEMPT=3",
        "ATTUNE_EXECUTION_ID=4711",
    ] {
        assert!(
            lines.clone().any(|other| other == line),
            "{line} is not in {stdout}"
        );
    }
}

#[tokio::test]
async fn json_on_stdout_is_the_result_and_other_text_is_text() {
    let bench = bench();
    for (command, expected) in [
        (
            r#"echo '{"a": [1, 2.5, null]}'"#,
            json!({"a": [1, 2.5, null]}),
        ),
        ("echo; echo 17; echo", json!(17)),
        ("printf 'two\\nlines\\n\\n'", json!("two\nlines\n")),
        ("printf 'dos\\r\\n'", json!("dos")),
        (r#"echo '{"a": 1} and more'"#, json!("{\"a\": 1} and more")),
        (r#"printf '"\\u0000"'"#, json!("\"\\u0000\"")),
        ("echo 1e999", json!("1e999")),
        ("printf 'a\\000b'", json!("a\u{fffd}b")),
        ("printf 'a\\377b'", json!("a\u{fffd}b")),
    ] {
        let outcome = bench.run(script(command)).await;
        assert_eq!(
            (outcome.status, outcome.exit_code),
            (Status::Succeeded, Some(0)),
            "{command}"
        );
        assert_eq!(value(&outcome), expected, "{command}");
    }
    let silent = bench.run(script("exit 0")).await;
    assert!(silent.result.is_none() && silent.stdout.is_none() && silent.stderr.is_none());
    let deep = "[".repeat(33) + &"]".repeat(33);
    let outcome = bench.run(script(&format!("printf '{deep}'"))).await;
    assert_eq!(value(&outcome), json!(deep));
}

#[tokio::test]
async fn a_failing_program_keeps_its_code_and_output() {
    let outcome = bench()
        .run(script("echo out; echo problem >&2; exit 7"))
        .await;
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Failed, Some(7))
    );
    assert_eq!(error(&outcome), "the program exited with code 7");
    assert_eq!(outcome.stdout.as_deref(), Some("out\n"));
    assert_eq!(outcome.stderr.as_deref(), Some("problem\n"));
}

#[tokio::test]
async fn a_signal_is_named() {
    let outcome = bench().run(script("kill -SEGV $$")).await;
    assert_eq!((outcome.status, outcome.exit_code), (Status::Failed, None));
    assert_eq!(
        error(&outcome),
        "the program was ended by signal 11 (SIGSEGV)"
    );
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_named() {
    let bench = bench();
    for (program, problem) in [
        (
            "/no/such/program",
            "the program `/no/such/program` was not found",
        ),
        (
            "no-such-program",
            "the program `no-such-program` was not found",
        ),
        (
            "/etc/passwd",
            "the program `/etc/passwd` may not be executed",
        ),
        ("", "`argv` names no program"),
        ("a\0b", "the program `a\0b` cannot be started"),
    ] {
        let outcome = bench
            .run(request(Run::Program(vec![program.to_owned()]), &json!({})))
            .await;
        assert_eq!((outcome.status, outcome.exit_code), (Status::Failed, None));
        assert!(error(&outcome).starts_with(problem), "{outcome:?}");
    }
}

#[tokio::test]
async fn command_runs_its_arguments_without_a_shell() {
    let bench = bench();
    let argv = json!({"argv": ["printf", "%s", "$HOME; `id` \"x\""]});
    let outcome = bench.run(builtin(Builtin::Command, argv)).await;
    assert_eq!(value(&outcome), json!("$HOME; `id` \"x\""));
    for parameters in [json!({}), json!({"argv": "ls -l"}), json!({"argv": []})] {
        let outcome = bench.run(builtin(Builtin::Command, parameters)).await;
        assert_eq!(outcome.status, Status::Failed, "{outcome:?}");
    }
}

#[tokio::test]
async fn output_is_capped_and_the_cut_is_marked() {
    let outcome = bench()
        .run(script("head -c 300000 /dev/zero | tr '\\0' x; echo e >&2"))
        .await;
    let expected = format!("{}… [cut: 299000 bytes more]", "x".repeat(1000));
    assert_eq!(outcome.status, Status::Succeeded);
    assert_eq!(outcome.stdout.as_deref(), Some(&*expected));
    assert_eq!(value(&outcome), json!(expected));
    assert_eq!(outcome.stderr.as_deref(), Some("e\n"));
}

#[tokio::test]
async fn a_program_need_not_read_its_parameters() {
    let large = json!({"text": "x".repeat(1_000_000)});
    let argv = |text: &str| Run::Program(["/bin/sh", "-c", text].map(str::to_owned).into());
    let bench = bench();
    let unread = bench.run(request(argv("echo done"), &large)).await;
    assert_eq!(
        (unread.status, value(&unread)),
        (Status::Succeeded, json!("done"))
    );
    let read = bench.run(request(argv("wc -c"), &large)).await;
    assert_eq!(value(&read), json!(1_000_011));
}

#[tokio::test]
async fn a_timeout_ends_the_whole_group() {
    let bench = bench();
    // The grandchild ignores TERM, as does the program itself.
    let mut request = script(
        "trap '' TERM; sh -c 'sleep 300 & echo $!; echo $$; wait' & sleep 300 & echo $!; echo $$; \
         wait; wait",
    );
    request.timeout_seconds = 1;
    let began = Instant::now();
    let outcome = bench.run(request).await;
    assert!(
        began.elapsed() >= Duration::from_millis(1200),
        "the grace was not given"
    );
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::TimedOut, None)
    );
    assert_eq!(error(&outcome), "it ran longer than 1 s");
    let pids: Vec<_> = outcome.stdout.as_deref().unwrap().lines().collect();
    assert_eq!(pids.len(), 4);
    for pid in pids {
        until("the process is gone", || !is_alive(pid)).await;
    }
}

#[tokio::test]
async fn the_rest_of_the_group_has_the_same_grace_as_the_program() {
    let bench = bench_with(|options| options.kill_grace = Duration::from_secs(10));
    // The program itself goes at once; its child takes a moment to clean up and is let finish.
    let mut request = script(
        "sh -c 'trap \"sleep 0.3; echo cleaned; exit\" TERM; echo ready; sleep 300 & wait' & \
         trap 'exit 0' TERM; wait",
    );
    request.timeout_seconds = 1;
    let outcome = bench.run(request).await;
    assert_eq!(outcome.status, Status::TimedOut);
    assert_eq!(outcome.stdout.as_deref(), Some("ready\ncleaned\n"));
}

#[tokio::test]
async fn what_escaped_the_group_cannot_hold_the_run() {
    let bench = bench();
    let began = Instant::now();
    let outcome = bench
        .run(script("setsid sleep 300 & echo $!; echo done >&2"))
        .await;
    assert_eq!(outcome.status, Status::Succeeded);
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "reading was not bounded"
    );
    assert_eq!(outcome.stderr.as_deref(), Some("done\n"));
    let escaped = outcome.stdout.as_deref().unwrap().trim().to_owned();
    assert!(is_alive(&escaped), "it was to escape");
    let pid = rustix::process::Pid::from_raw(escaped.parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn what_stays_behind_in_the_group_is_killed() {
    let outcome = bench().run(script("sleep 300 & echo $!")).await;
    assert_eq!(outcome.status, Status::Succeeded);
    let pid = outcome.stdout.as_deref().unwrap().trim().to_owned();
    until("the process is gone", || !is_alive(&pid)).await;
}

#[tokio::test]
async fn a_cancel_ends_a_program_and_says_so() {
    let bench = bench();
    let sign = bench.work_dir.path().join("sign");
    let text = format!(
        "trap 'echo bye; exit 0' TERM; : > {}; sleep 300 & wait",
        sign.display()
    );
    let stop = Stop::default();
    let (ended, ()) = tokio::join!(bench.ended(script(&text), stop.clone()), async {
        until("it runs", || sign.exists()).await;
        stop.cancel.cancel();
    });
    let Ended::Outcome(outcome) = ended else {
        panic!("a cancel is reported")
    };
    assert_eq!(
        (outcome.status, outcome.exit_code),
        (Status::Cancelled, Some(0))
    );
    assert_eq!(error(&outcome), "cancelled while it ran");
    assert_eq!(outcome.stdout.as_deref(), Some("bye\n"));
}

#[tokio::test]
async fn a_cancel_ends_a_sleep_and_a_timeout_does_too() {
    let bench = bench();
    let stop = Stop::default();
    stop.cancel.cancel();
    let sleep = builtin(Builtin::Sleep, json!({"seconds": 300}));
    let Ended::Outcome(outcome) = bench.ended(sleep, stop).await else {
        panic!("reported")
    };
    assert_eq!(outcome.status, Status::Cancelled);
    let mut sleep = builtin(Builtin::Sleep, json!({"seconds": 300}));
    sleep.timeout_seconds = 1;
    assert_eq!(bench.run(sleep).await.status, Status::TimedOut);
}

#[tokio::test]
async fn a_worker_that_may_not_go_on_kills_at_once_and_reports_nothing() {
    let bench = bench_with(|options| options.kill_grace = Duration::from_secs(300));
    let sign = bench.work_dir.path().join("sign");
    let text = format!(
        "trap '' TERM; sleep 300 & echo $! > {0}.new; mv {0}.new {0}; wait",
        sign.display()
    );
    let stop = Stop::default();
    let (ended, ()) = tokio::join!(bench.ended(script(&text), stop.clone()), async {
        until("it runs", || sign.exists()).await;
        // Even while the grace of a cancel is running.
        stop.cancel.cancel();
        tokio::task::yield_now().await;
        stop.over.cancel();
    });
    assert!(matches!(ended, Ended::Killed));
    let pid = std::fs::read_to_string(&sign).unwrap();
    until("the process is gone", || !is_alive(pid.trim())).await;
}

#[tokio::test]
async fn a_run_whose_task_is_dropped_leaves_nothing_behind() {
    let bench = bench();
    let sign = bench.work_dir.path().join("sign");
    let text = format!(
        "sleep 300 & echo $! > {0}.new; mv {0}.new {0}; wait",
        sign.display()
    );
    let runner = Arc::clone(&bench.runner);
    let request = script(&text);
    let task = tokio::spawn(async move {
        runner
            .run(
                &request,
                WorkerId::fresh(),
                Arc::new(Began::now()),
                Stop::default(),
            )
            .await
    });
    until("it runs", || sign.exists()).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    let pid = std::fs::read_to_string(&sign).unwrap();
    until("the process is gone", || !is_alive(pid.trim())).await;
}
