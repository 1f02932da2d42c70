//! What a stranger types first, wrong or too early, and what is answered.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use attune_store::{Store as _, WorkerStore as _};
use attune_store_sqlite::{SqliteOptions, SqliteStore};
use attune_testkit::within;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpSocket;
use tokio::process::Command;

/// The binary with these arguments and no settings of the developer's own.
fn attune(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_attune"));
    command
        .args(args)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Runs it to its end: the exit code, stdout and stderr.
async fn run(mut command: Command) -> anyhow::Result<(i32, String, String)> {
    let output = command.output().await?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let code = output.status.code().context("it was killed")?;
    Ok((code, text(output.stdout), text(output.stderr)))
}

/// A port of loopback that is taken and refuses connections until it listens.
fn silent_port() -> anyhow::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.bind("127.0.0.1:0".parse()?)?;
    Ok(socket)
}

#[tokio::test]
async fn a_client_command_waits_for_a_server_that_is_coming_up() -> anyhow::Result<()> {
    let socket = silent_port()?;
    let url = format!("http://{}", socket.local_addr()?);
    let mut client = attune(&["queues", "--json", "--url", &url]).spawn()?;
    let stderr = client.stderr.take().context("no stderr")?;
    let said = BufReader::new(stderr).lines().next_line().await?;
    let said = said.context("it said nothing and ended")?;
    ensure!(
        said == format!("attune: no server at {url}/ yet; waiting for it, 10 s at most"),
        "{said}"
    );
    let queues = Router::new().route(
        "/api/v1/queue-stats",
        get(async || Json(json!({"queues": [], "total": 0}))),
    );
    let server = tokio::spawn(axum::serve(socket.listen(8)?, queues).into_future());
    let output = client.wait_with_output().await?;
    server.abort();
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    ensure!(answer["queues"] == json!([]), "{answer}");
    Ok(())
}

#[tokio::test]
async fn a_client_command_gives_up_on_a_server_that_does_not_come() -> anyhow::Result<()> {
    let socket = silent_port()?;
    let url = format!("http://{}", socket.local_addr()?);
    for seconds in [0, 1] {
        let started = Instant::now();
        let patience = seconds.to_string();
        let command = attune(&["queues", "--url", &url, "--connect-timeout", &patience]);
        let (code, _, stderr) = run(command).await?;
        ensure!(code == 3, "exit code {code}: {stderr}");
        ensure!(
            started.elapsed() >= Duration::from_secs(seconds),
            "after {:?}",
            started.elapsed()
        );
        ensure!(stderr.contains("is it running?"), "{stderr}");
        ensure!(stderr.contains("yet; waiting") == (seconds > 0), "{stderr}");
    }
    Ok(())
}

/// Compose files and shells pass on unset variables like that.
#[tokio::test]
async fn an_empty_variable_names_no_server() -> anyhow::Result<()> {
    let mut queues = attune(&["queues", "--connect-timeout", "0"]);
    queues.env("ATTUNE_URL", "");
    // Somebody may listen where everybody listens.
    let (code, stdout, stderr) = run(queues).await?;
    ensure!(
        !stderr.contains("is not a URL"),
        "exit code {code}: {stdout}{stderr}"
    );
    // Who types it means something else than what would be asked then.
    let (code, _, stderr) = run(attune(&["queues", "--url", ""])).await?;
    ensure!(
        code == 2 && stderr.contains("is not a URL"),
        "exit code {code}: {stderr}"
    );
    Ok(())
}

#[tokio::test]
async fn client_commands_refuse_wrong_settings() -> anyhow::Result<()> {
    for args in [
        &["queues", "--set", "executor.que.max=1"][..],
        &["submit", "core.echo", "--set", "executor.que.max=1"],
        &["check-history", "/tmp", "--set", "executor.que.max=1"],
    ] {
        let (code, _, stderr) = run(attune(args)).await?;
        ensure!(code == 2, "{args:?}: exit code {code}: {stderr}");
        ensure!(stderr.contains("executor.que.max (flag)"), "{stderr}");
    }
    let mut queues = attune(&["queues"]);
    queues.env("ATTUNE__WORKER__SLOTS", "lots");
    let (code, _, stderr) = run(queues).await?;
    ensure!(code == 2 && stderr.contains("worker.slots"), "{stderr}");
    Ok(())
}

#[tokio::test]
async fn one_role_alone_refuses_the_embedded_wiring() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    for role in ["executor", "completion-listener", "stats", "api", "worker"] {
        let mut command = attune(&[role]);
        command
            .current_dir(folder.path())
            .env("ATTUNE__WIRING", "embedded");
        let (code, _, stderr) = run(command).await?;
        ensure!(code == 1, "{role}: exit code {code}: {stderr}");
        for words in ["variable ATTUNE__WIRING", "attune standalone", role] {
            ensure!(stderr.contains(words), "{role}: {words:?} in {stderr}");
        }
    }
    let left = std::fs::read_dir(folder.path())?.count();
    ensure!(left == 0, "{left} files were made");
    Ok(())
}

/// What has no address has begun nothing: no worker of it counts as alive.
#[tokio::test]
async fn standalone_whose_address_is_in_use_leaves_no_worker_behind() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?;
    for setting in ["api.listen", "ops.listen"] {
        let mut command = attune(&["standalone", "--set", "api.listen=127.0.0.1:0"]);
        command.args(["--set", &format!("{setting}={address}")]);
        command.current_dir(folder.path());
        let (code, _, stderr) = run(command).await?;
        let named = format!("cannot listen on {setting} {address}");
        ensure!(code == 1 && stderr.contains(&named), "{code}: {stderr}");
        let file = folder.path().join("attune-data/attune.db");
        let store = SqliteStore::open(SqliteOptions::new(&file)).await?;
        let workers = store.workers().await?;
        store.close().await;
        ensure!(workers.is_empty(), "{setting}: {workers:?}");
    }
    Ok(())
}

#[tokio::test]
async fn migrate_gives_up_on_a_database_that_does_not_come() -> anyhow::Result<()> {
    let socket = silent_port()?;
    let url = format!(
        "database.url=postgres://nobody@{}/none",
        socket.local_addr()?
    );
    let command = attune(&["migrate", "--give-up-after", "1", "--set", &url]);
    let (code, stdout, stderr) = run(command).await?;
    ensure!(code == 1 && stdout.is_empty(), "{code}: {stdout}{stderr}");
    let mut lines = stderr.lines();
    let first = lines.next().unwrap_or_default();
    ensure!(
        first.trim().starts_with("WARN waiting for PostgreSQL"),
        "{stderr}"
    );
    let last = lines.next_back().unwrap_or_default();
    ensure!(last.starts_with("attune: gave up after 1 s"), "{stderr}");
    Ok(())
}

#[tokio::test]
async fn every_argument_has_a_help_text() -> anyhow::Result<()> {
    for (args, words) in [
        (
            &["executions", "show", "--help"][..],
            "The execution's number",
        ),
        (&["explain", "--help"], "The execution's number"),
        (
            &["executions", "cancel", "--help"],
            "The executions' numbers",
        ),
        (
            &["executions", "release", "--help"],
            "The execution's number",
        ),
    ] {
        let (_, stdout, _) = run(attune(args)).await?;
        ensure!(stdout.contains(words), "{args:?}: {stdout}");
    }
    Ok(())
}

/// What an error quotes may come from somebody else, and must not steer the terminal.
#[tokio::test]
async fn errors_do_not_steer_the_terminal() -> anyhow::Result<()> {
    for role in ["queues", "migrate"] {
        let (code, stdout, stderr) = run(attune(&[role, "--config", "/no\u{1b}[31m/such"])).await?;
        ensure!(code != 0 && stdout.is_empty(), "{role}: {code} {stdout}");
        ensure!(stderr.contains("/no\\u001b[31m/such"), "{role}: {stderr}");
        ensure!(!stderr.contains('\u{1b}'), "{role}: {stderr}");
    }
    Ok(())
}

/// Making the first key is what many type first, before there is a database.
#[tokio::test]
async fn keys_of_a_database_that_does_not_answer_say_what_they_wait_for() -> anyhow::Result<()> {
    let socket = silent_port()?;
    let address = socket.local_addr()?;
    let url = format!("database.url=postgres://me:hunter2@{address}/attune");
    let mut keys = attune(&["keys", "list", "--database", "--set", &url]).spawn()?;
    let stderr = keys.stderr.take().context("no stderr")?;
    let said = BufReader::new(stderr).lines().next_line().await?;
    let words = format!(
        "attune: PostgreSQL at {address} (database.url) does not answer yet; waiting for it, 60 s at most"
    );
    ensure!(said == Some(words), "{said:?}");
    Ok(())
}

/// Which of the two is meant nobody can know.
#[tokio::test]
async fn two_variables_with_a_key_are_refused() -> anyhow::Result<()> {
    let both = |mut command: Command| {
        command.envs([("ATTUNE_KEY", "atk_x"), ("ATTUNE_KEY_FILE", "/no/such")]);
        command
    };
    let (code, _, stderr) = run(both(attune(&["queues"]))).await?;
    let words = "ATTUNE_KEY and ATTUNE_KEY_FILE are both set";
    ensure!(code == 2 && stderr.contains(words), "{code} {stderr}");
    let (code, _, stderr) = run(both(attune(&["queues", "--key-file", "/other"]))).await?;
    ensure!(code == 2 && stderr.contains("/other"), "{code} {stderr}");
    Ok(())
}

/// A worker that would make its folder where nobody has made or mounted one is told so before it reaches for a server.
#[tokio::test]
async fn a_folder_of_runs_that_cannot_be_meant_is_refused_at_the_start() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let work = folder.path().join("mounted/runs");
    let set = format!("worker.work_dir={}", work.display());
    let data = format!("data_dir={}", folder.path().join("data").display());
    let args = ["standalone", "--set", &set, "--set", &data];
    // It would serve for ever.
    let ended = within("the refusal", run(attune(&args))).await?;
    let (code, _, stderr) = ended?;
    ensure!(code == 1, "{code} {stderr}");
    for words in [
        "worker.work_dir",
        "mounted is not there",
        "mend the setting",
    ] {
        ensure!(stderr.contains(words), "{words}: {stderr}");
    }
    ensure!(!folder.path().join("mounted").exists(), "it was made");
    Ok(())
}

#[tokio::test]
async fn the_version_says_how_it_was_built() -> anyhow::Result<()> {
    let (code, stdout, _) = run(attune(&["--version"])).await?;
    let start = concat!("attune ", env!("CARGO_PKG_VERSION"), " ");
    ensure!(code == 0 && stdout.starts_with(start), "{stdout}");
    let profile = if cfg!(debug_assertions) {
        "(debug build for "
    } else {
        "(release build for "
    };
    ensure!(stdout.contains(profile), "{stdout}");
    Ok(())
}

/// Locks a file, starts a server, lets the file go, and locks it again.
const STARTER: &str =
    r#"exec 7>"$2"; flock 7; "$1" start postgres || exit 9; exec 7>&-; flock -n "$2" true"#;

#[tokio::test]
async fn servers_keep_nothing_that_their_starter_has_open() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let services = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/services");
    let script = |arguments: &[&std::ffi::OsStr]| {
        let mut command = Command::new("bash");
        command
            .args(arguments)
            .env_remove("ATTUNE_TEST_POSTGRES_URL")
            .env("ATTUNE_SERVICES_DIR", folder.path().join("services"));
        command
    };
    let lock = folder.path().join("lock");
    let starter = ["-c", STARTER, "starter", services].map(std::ffi::OsStr::new);
    let started = script(&[&starter[..], &[lock.as_os_str()]].concat())
        .status()
        .await?;
    let stopped = script(&[services.as_ref(), "purge".as_ref()])
        .status()
        .await?;
    ensure!(started.success(), "the lock is kept: {started}");
    ensure!(stopped.success(), "{stopped}");
    Ok(())
}

#[tokio::test]
async fn cluster_a_wrong_password_is_told_once() -> anyhow::Result<()> {
    let database = attune_testkit::Database::create().await?;
    let (_, place) = database.url().split_once('@').context("no user in it")?;
    let url = format!("database.url=postgres://nobody:hunter2@{place}");
    let (code, _, stderr) = run(attune(&["migrate", "--set", &url])).await?;
    ensure!(code == 1 && !stderr.contains("hunter2"), "{code}: {stderr}");
    ensure!(
        stderr.starts_with("attune: database.url cannot be used: "),
        "{stderr}"
    );
    let told = stderr.matches("password authentication failed").count();
    ensure!(told == 1 && !stderr.contains("at line"), "{stderr}");
    Ok(())
}
