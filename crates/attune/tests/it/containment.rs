//! Programs that try to break out of their run, each of which once could.
//!
//! As root, where that is what this test runs as, and as an account that has nothing: what holds for one
//! account need not hold for the other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use attune_testkit::{Api, Launch, Process, variable, wait_for};
use rustix::process::geteuid;
use serde_json::{Value, json};
use tempfile::TempDir;

/// In the settings of the worker, and nowhere else.
const CANARY: &str = "c4n4ry-of-the-passwords";
/// An account that has nothing.
const NOBODY: u32 = 65534;

/// Who the worker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum As {
    /// Whoever runs this test.
    Tester,
    /// An account that has nothing, in a control group that was given to it.
    Nobody,
    /// The same, in a control group of others: runs have none, but attendants.
    Alone,
}

/// A process that serves everything, with its folder and its control group.
struct Stand {
    process: Process,
    api: Api,
    folder: TempDir,
    _cgroup: Option<Cgroup>,
}

/// A control group that belongs to an account.
struct Cgroup(PathBuf);

impl Cgroup {
    /// None where this machine has no second version of them.
    fn given_to(user: u32) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
        let mut lines = mounts.lines().map(|line| line.split(' '));
        let mount = lines.find_map(|mut words| {
            let point = words.nth(1)?;
            (words.next() == Some("cgroup2")).then(|| point.to_owned())
        })?;
        let path = Path::new(&mount).join(format!("attune-it-{}", uuid::Uuid::now_v7()));
        std::fs::create_dir(&path).ok()?;
        let made = Self(path);
        for file in ["", "cgroup.procs", "cgroup.subtree_control"] {
            std::os::unix::fs::chown(made.0.join(file), Some(user), Some(user)).ok()?;
        }
        Some(made)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Nothing is left in it; a test that has failed may leave the group.
        let _ = std::fs::remove_dir(&self.0);
    }
}

impl Stand {
    /// Starts one; nothing where this test may not be who it is to be.
    async fn start(who: As, settings: &[(&str, &str)]) -> anyhow::Result<Option<Self>> {
        if who != As::Tester && !geteuid().is_root() {
            eprintln!("skipped: only root can be somebody else");
            return Ok(None);
        }
        let folder = tempfile::Builder::new().prefix("attune-it-").tempdir()?;
        let url = format!("postgres://attune:{CANARY}@127.0.0.1:1/none");
        let own = [
            ("data_dir", "data"),
            ("api.listen", "127.0.0.1:0"),
            ("ops.listen", "127.0.0.1:0"),
            ("cluster.partitions", "2"),
            ("worker.kill_grace_seconds", "1"),
            ("log.format", "text"),
            // Not used; here because nobody may read it.
            ("database.url", &url),
        ];
        let env: BTreeMap<_, _> = own
            .iter()
            .chain(settings)
            .map(|(key, value)| (variable(key), (*value).to_owned()))
            .collect();
        // It has a file open from whoever starts it.
        std::fs::write(folder.path().join("held"), &url)?;
        let binary = env!("CARGO_BIN_EXE_attune");
        let cgroup = Some(NOBODY)
            .filter(|_| who == As::Nobody)
            .and_then(Cgroup::given_to);
        let script = match who {
            As::Tester => format!("exec {binary} standalone"),
            As::Nobody | As::Alone => {
                std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY))?;
                let enter = cgroup.as_ref().map_or_else(String::new, |cgroup| {
                    format!("echo $$ > {}/cgroup.procs && ", cgroup.0.display())
                });
                let account = format!("--reuid={NOBODY} --regid={NOBODY} --clear-groups");
                format!("{enter}exec setpriv {account} {binary} standalone")
            }
        };
        let script = format!("exec 7<held && {script}");
        let process = Process::spawn(Launch {
            name: "standalone".to_owned(),
            binary: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script],
            env,
            folder: folder.path().to_owned(),
        })?;
        let base = wait_for("its address", async || {
            process
                .announced("Attune listens on ")
                .context("it is not told")
        })
        .await?;
        let api = Api::new(base)?;
        Ok(Some(Self {
            process,
            api,
            folder,
            _cgroup: cgroup,
        }))
    }

    /// Runs a shell script, and says how it ended.
    async fn run(&self, name: &str, script: &str, more: Value) -> anyhow::Result<Value> {
        let id = self.begin(name, script, more).await?;
        self.ended(id).await
    }

    async fn begin(&self, name: &str, script: &str, more: Value) -> anyhow::Result<i64> {
        let mut spec = json!({
            "ref": format!("it.{name}"), "run": {"program": ["/bin/sh", "-c", script]},
            "max_attempts": 1, "policy": {"concurrency": {"limit": 1}},
        });
        let more = more.as_object().cloned().unwrap_or_default();
        spec.as_object_mut().context("an object")?.extend(more);
        self.api.apply(&spec).await?;
        Ok(self.api.submit(&format!("it.{name}"), json!({})).await?.id)
    }

    async fn ended(&self, id: i64) -> anyhow::Result<Value> {
        wait_for("the end of the run", async || {
            let execution = self.api.execution(id).await?;
            let is_over = !execution["finished_at"].is_null();
            ensure!(is_over, "it goes on: {execution}");
            Ok(execution)
        })
        .await
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        self.process.stop().await
    }
}

/// Does the same for every account; when it fails, the log is shown.
async fn on_each(
    settings: &[(&str, &str)],
    scenario: impl AsyncFn(&Stand) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    for who in [As::Tester, As::Nobody, As::Alone] {
        let Some(stand) = Stand::start(who, settings).await? else {
            continue;
        };
        let outcome = scenario(&stand).await;
        if outcome.is_err() {
            eprintln!("{}", stand.process.log());
        }
        outcome.with_context(|| format!("{who:?}"))?;
        stand.stop().await?;
    }
    Ok(())
}

/// Every process that runs a program of this name.
fn running(name: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().into_string().ok());
    pids.filter(|pid| {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        command.is_ok_and(|command| command == name)
    })
    .collect()
}

/// A number that nobody else sleeps for.
fn odd_seconds() -> u32 {
    1_000_000 + uuid::Uuid::new_v4().as_fields().0 % 1_000_000
}

/// Finding C1: `/proc/$PPID/environ`, `fd` and `mem`, of the worker and of whatever else it began, and what the
/// worker was started with open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_program_cannot_read_the_passwords_of_its_worker() -> anyhow::Result<()> {
    let script = format!(
        "for p in /proc/[0-9]*; do [ $p = /proc/$$ ] && continue; \
         tr '\\0' '\\n' < $p/environ 2>/dev/null | grep {CANARY}; done; \
         cat /proc/self/fd/7 2>&1; ls -l /proc/$PPID/fd 2>&1; head -c1 /proc/$PPID/mem 2>&1; cat /proc/$PPID/environ 2>&1; true"
    );
    on_each(&[], async |stand: &Stand| {
        let ended = stand.run("spy", &script, json!({})).await?;
        ensure!(ended["status"] == "succeeded", "{ended}");
        let text = ended.to_string();
        // It stands in the script as well, but not with what is before it.
        ensure!(
            !text.contains(&format!(":{CANARY}@")),
            "the password: {ended}"
        );
        let refusals = text.matches("Permission denied").count();
        ensure!(refusals >= 2, "what was refused? {ended}");
        Ok(())
    })
    .await
}

/// Finding C2: a child that leaves the group, the session and the environment of its run as the first thing
/// that it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_program_does_not_outlive_its_run() -> anyhow::Result<()> {
    on_each(&[], async |stand: &Stand| {
        let seconds = odd_seconds();
        let script =
            format!("env -i setsid -f sleep {seconds} </dev/null >/dev/null 2>&1; sleep 600");
        let id = stand.begin("escape", &script, json!({})).await?;
        let name = format!("sleep\0{seconds}\0");
        wait_for("its child", async || {
            ensure!(!running(&name).is_empty(), "not begun");
            Ok(())
        })
        .await?;
        stand.api.cancel(id).await?.expect(202)?;
        stand.api.until(id, "cancelled").await?;
        let left = running(&name);
        ensure!(left.is_empty(), "{left:?} are left");
        Ok(())
    })
    .await
}

/// The same, when its worker is killed: by then nobody is left who could tell whose it was, but its control
/// group and its attendant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_program_does_not_outlive_its_worker() -> anyhow::Result<()> {
    for who in [As::Tester, As::Nobody, As::Alone] {
        let Some(mut stand) = Stand::start(who, &[]).await? else {
            continue;
        };
        let seconds = odd_seconds();
        let script =
            format!("env -i setsid -f sleep {seconds} </dev/null >/dev/null 2>&1; sleep 600");
        stand.begin("escape", &script, json!({})).await?;
        let name = format!("sleep\0{seconds}\0");
        wait_for("its child", async || {
            ensure!(!running(&name).is_empty(), "not begun");
            Ok(())
        })
        .await?;
        stand.process.kill().await?;
        wait_for("the end of its child", async || {
            let left = running(&name);
            ensure!(left.is_empty(), "{who:?}: {left:?} are left");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Finding C2: a program that writes itself into the control group above its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_program_cannot_leave_its_control_group() -> anyhow::Result<()> {
    let script = "g=$(sed -n 's/^0:://p' /proc/self/cgroup); m=$(sed -n 's/^[^ ]* \\([^ ]*\\) cgroup2 .*/\\1/p' \
                  /proc/self/mounts | head -1); up=$(dirname $(dirname $m$g)); echo $$ > $up/cgroup.procs; \
                  echo $$ > $m/cgroup.procs; mkdir $m$g/inner; cat /proc/self/cgroup | grep ^0::";
    on_each(&[], async |stand: &Stand| {
        let ended = stand.run("climb", script, json!({})).await?;
        let text = ended["stdout"].as_str().unwrap_or_default();
        if !text.contains("/attune-") {
            eprintln!("skipped: runs have no control group here: {ended}");
            return Ok(());
        }
        let refused = ended["stderr"].as_str().unwrap_or_default();
        ensure!(refused.matches("ermission denied").count() == 3, "{ended}");
        let place = text.trim_end();
        ensure!(place.ends_with(&format!("{}-1", ended["id"])), "{ended}");
        Ok(())
    })
    .await
}

/// Finding C3: `kill -9 $PPID`, and everybody else who may be signalled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_program_cannot_kill_its_worker() -> anyhow::Result<()> {
    on_each(&[], async |stand: &Stand| {
        if stand.process.log().contains("older than Linux 6.12") {
            eprintln!("skipped: this kernel cannot keep a program from sending signals");
            return Ok(());
        }
        let script = "for p in $PPID $(cat /proc/$PPID/task/*/children); do \
                      if [ $p != $$ ]; then kill -9 $p && echo killed $p; fi; done";
        let ended = stand.run("assassin", script, json!({})).await?;
        let said = ended["stderr"].as_str().unwrap_or_default();
        ensure!(said.contains("not permitted"), "{ended}");
        ensure!(!ended["stdout"].to_string().contains("killed"), "{ended}");
        ensure!(ended["attempt"] == 1, "its worker was lost: {ended}");
        Ok(())
    })
    .await
}

/// Finding C4: who submits or defines an action chooses what runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_worker_runs_only_what_its_operator_lets_it() -> anyhow::Result<()> {
    let settings = [
        ("worker.builtins", "noop, echo"),
        ("worker.program_dirs", "/bin, /usr/bin"),
    ];
    let Some(stand) = Stand::start(As::Tester, &settings).await? else {
        return Ok(());
    };
    let command = json!({"argv": ["/bin/sh", "-c", "id"]});
    let id = stand.api.submit("core.command", command).await?.id;
    let refused = stand.ended(id).await?;
    ensure!(refused["status"] == "failed", "{refused}");
    ensure!(
        refused["error"].to_string().contains("worker.builtins"),
        "{refused}"
    );
    let elsewhere = stand.folder.path().join("program");
    std::fs::copy("/bin/true", &elsewhere)?;
    let program = json!({"program": [elsewhere]});
    let refused = stand.run("elsewhere", "", json!({"run": program})).await?;
    ensure!(
        refused["error"].to_string().contains("worker.program_dirs"),
        "{refused}"
    );
    let env = json!({"env": {"LD_PRELOAD": "/tmp/evil.so"}});
    let refused = stand.run("preload", "true", env).await?;
    ensure!(
        refused["error"].to_string().contains("LD_PRELOAD"),
        "{refused}"
    );
    let fine = stand
        .run("fine", "echo yes", json!({"env": {"LANG": "C"}}))
        .await?;
    ensure!(fine["result"] == "yes", "{fine}");
    stand.stop().await
}

/// Finding C5: memory and processes without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_program_takes_no_more_than_it_may() -> anyhow::Result<()> {
    on_each(&[], async |stand: &Stand| {
        let memory = json!({"resources": {"memory": "48Mi"}});
        let ended = stand.run("glutton", "exec tail /dev/zero", memory).await?;
        ensure!(
            ended["status"] == "failed" && ended["end_code"] == "OUT_OF_MEMORY",
            "{ended}"
        );
        ensure!(ended["error"].to_string().contains("48Mi"), "{ended}");
        let pids = json!({"resources": {"pids": 20}});
        let bomb = "i=0; while [ $i -lt 200 ]; do sleep 600 & i=$((i+1)); done; wait";
        let ended = stand.run("bomb", bomb, pids).await?;
        let error = ended.to_string();
        let kept = error.contains("TOO_MANY_PROCESSES") || error.contains("fork");
        ensure!(ended["status"] == "failed" && kept, "{ended}");
        let fine = stand.run(
            "modest",
            "echo yes",
            json!({"resources": {"memory": "48Mi", "pids": 20}}),
        );
        let fine = fine.await?;
        ensure!(fine["result"] == "yes", "{fine}");
        let core = stand.run("core", "ulimit -c", json!({})).await?;
        ensure!(core["result"] == 0, "{core}");
        Ok(())
    })
    .await
}

/// Limits of a process, and the only places that it may write to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_program_writes_and_opens_no_more_than_it_may() -> anyhow::Result<()> {
    let settings = [
        ("worker.limits.open_files", "64"),
        ("worker.limits.file_size", "1Mi"),
        ("worker.write_dirs", "/var/lib"),
    ];
    on_each(&settings, async |stand: &Stand| {
        let script = "ulimit -n; ulimit -f; echo room > here && cat here; echo t > $(mktemp); echo n > /dev/null; \
                      touch /etc/attune-broke-out && echo out; head -c 3000000 /dev/zero > large";
        let ended = stand.run("writer", script, json!({})).await?;
        let said = ended["stdout"].as_str().unwrap_or_default();
        ensure!(said.starts_with("64\n2048\nroom\n") && !said.contains("out"), "{ended}");
        ensure!(ended["status"] == "failed", "{ended}");
        Ok(())
    })
    .await
}

/// Programs have an account of their own: they have their folder, and nothing of the worker's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_program_runs_as_the_account_that_was_set() -> anyhow::Result<()> {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can run programs as somebody else");
        return Ok(());
    }
    let account = format!("{NOBODY}:{NOBODY}");
    // Without the sandbox: the account alone must keep them apart.
    let settings = [
        ("worker.run_as", account.as_str()),
        ("worker.sandbox", "off"),
    ];
    let Some(stand) = Stand::start(As::Tester, &settings).await? else {
        return Ok(());
    };
    let script = "id -u; id -G; cat $ATTUNE_PARAMETERS_FILE; echo; echo mine > file; cat file; \
                  kill -9 $PPID; cat /proc/$PPID/environ; echo $$ > /sys/fs/cgroup/unified/cgroup.procs; true";
    let ended = stand.run("account", script, json!({})).await?;
    let said = ended["stdout"].as_str().unwrap_or_default();
    ensure!(
        said == format!("{NOBODY}\n{NOBODY}\n{{}}\nmine\n"),
        "{ended}"
    );
    ensure!(!ended.to_string().contains(CANARY), "{ended}");
    ensure!(ended["attempt"] == 1, "its worker was lost: {ended}");
    stand.stop().await
}

/// A worker that is root, with programs that would be.
#[tokio::test]
async fn worker_does_not_start_as_root_without_being_told_to() -> anyhow::Result<()> {
    if !geteuid().is_root() {
        eprintln!("skipped: this test is not root");
        return Ok(());
    }
    let output = tokio::process::Command::new(env!("CARGO_BIN_EXE_attune"))
        .arg("worker")
        .env_clear()
        .output()
        .await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success(), "{said}");
    ensure!(
        said.contains("worker.run_as") && said.contains("worker.allow_root"),
        "{said}"
    );
    Ok(())
}
