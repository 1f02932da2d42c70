//! Clocks that are set, and machines that sleep. The worker is this test program, started once
//! more under libfaketime, which changes what a process sees of its clocks while it runs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use attune_core::Run;
use attune_messages::v2::Grant;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::AsyncBufReadExt as _;

use crate::rig::{Rig, pid_in, request};
use crate::store::Mood;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Of the worker: short enough to wait for its end, long enough that a busy machine keeps it.
const LEASE: Duration = Duration::from_secs(3);
/// Seconds by which clocks are set.
const STEP: i64 = 7200;

/// Where Debian's package `faketime` has its library.
fn library() -> PathBuf {
    let lib = Path::new("/usr/lib");
    let folders = std::fs::read_dir(lib).unwrap().flatten();
    let found = folders
        .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.exists());
    found.expect("Debian's package `faketime` is missing: scripts/services install faketime")
}

fn seconds_of_the_wall_clock() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_secs().try_into().unwrap()
}

/// A program that writes its pid into a file. It ends by itself soon after the test, so that nobody
/// has to kill it by its number when the test fails.
fn program(sign: &Path) -> Grant {
    let text = "echo $$ > \"$0.new\"; mv \"$0.new\" \"$0\"; sleep 90";
    let argv = ["/bin/sh", "-c", text, sign.to_str().unwrap()].map(str::to_owned);
    request(1, Run::Program(argv.into()), json!({}))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the worker of the other tests, which start it under libfaketime"]
async fn the_worker_process() {
    let mut rig = Rig::start_with(|options| options.lease_ttl = LEASE).await;
    let sign = rig.sign("pid");
    rig.grant(&[program(&sign)]).await;
    // Words that the test runner does not use: it has its own line "running 1 test".
    println!("\nprogram-is {}", pid_in(&sign).await);
    let began = Instant::now();
    let mut lines = tokio::io::BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match line.as_str() {
            "away" => rig.store.change(|state| state.renewing = Mood::Away),
            "clocks" => println!(
                "\nclocks {} {}",
                seconds_of_the_wall_clock(),
                began.elapsed().as_millis()
            ),
            "renewals" => println!("\nrenewals {}", rig.store.change(|state| state.renewals)),
            _ => panic!("{line}"),
        }
    }
    rig.stop().await;
}

/// A worker whose clocks can be changed; it runs a program.
struct Faked {
    child: Child,
    stdin: ChildStdin,
    said: Receiver<String>,
    /// What its clocks are to show.
    clocks: PathBuf,
    pid: String,
    _dir: TempDir,
}

impl Faked {
    fn start(variables: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clocks = dir.path().join("clocks");
        std::fs::write(&clocks, "+0\n").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "clocks::the_worker_process",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env("LD_PRELOAD", library())
            .env("FAKETIME_TIMESTAMP_FILE", &clocks)
            .env("FAKETIME_NO_CACHE", "1")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, said) = channel();
        std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .for_each(|line| drop(sender.send(line)));
        });
        let mut faked = Self {
            child,
            stdin,
            said,
            clocks,
            pid: String::new(),
            _dir: dir,
        };
        faked.pid = faked.hear("program-is").remove(0);
        faked
    }

    /// What the worker says after `word`, the next time that it does.
    fn hear(&self, word: &str) -> Vec<String> {
        loop {
            let line = self.said.recv_timeout(PATIENCE).expect("it says nothing");
            let mut words = line.split(' ').map(str::to_owned);
            if words.next().as_deref() == Some(word) {
                return words.collect();
            }
        }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.stdin, "{order}").unwrap();
    }

    fn ask(&mut self, word: &str) -> Vec<i64> {
        self.order(word);
        let words = self.hear(word);
        words.iter().map(|word| word.parse().unwrap()).collect()
    }

    /// Changes its clocks, in one go: it may look at any time.
    fn set(&self, clocks: &str) {
        let new = self.clocks.with_extension("new");
        std::fs::write(&new, format!("{clocks}\n")).unwrap();
        std::fs::rename(new, &self.clocks).unwrap();
    }

    /// How far its wall clock is ahead of the real one, in seconds.
    fn ahead(&mut self) -> i64 {
        self.ask("clocks")[0] - seconds_of_the_wall_clock()
    }

    /// Whether its program runs.
    fn program_runs(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        stat.is_ok_and(|stat| {
            !stat
                .rsplit(')')
                .next()
                .unwrap_or_default()
                .starts_with(" Z")
        })
    }

    /// Waits until its program is gone, and says how long that took.
    fn program_ends(&self) -> Duration {
        let began = Instant::now();
        while self.program_runs() {
            assert!(began.elapsed() < PATIENCE, "the program outlives the lease");
            std::thread::sleep(Duration::from_millis(5)); // poll
        }
        began.elapsed()
    }

    /// Waits for so many renewals.
    fn renews(&mut self, count: i64) {
        let goal = self.ask("renewals")[0] + count;
        let deadline = Instant::now() + PATIENCE;
        while self.ask("renewals")[0] < goal {
            assert!(Instant::now() < deadline, "it does not renew its lease");
            std::thread::sleep(Duration::from_millis(5)); // poll
        }
    }
}

impl Drop for Faked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_wall_clock_that_is_set_ends_no_lease_and_keeps_none() {
    for (steps, last) in [(&[STEP, -STEP, 0][..], -STEP), (&[], STEP)] {
        let mut worker = Faked::start(&[("FAKETIME_DONT_FAKE_MONOTONIC", "1")]);
        for step in steps {
            worker.set(&format!("{step:+}"));
            let ahead = worker.ahead();
            assert!((ahead - step).abs() < 60, "{ahead} s instead of {step} s");
            // More than a lease's time of them, each a sixth of it after the other.
            worker.renews(7);
            assert!(
                worker.program_runs(),
                "it was killed after a step of {step} s"
            );
        }
        worker.order("away");
        worker.set(&format!("{last:+}"));
        assert!(worker.program_ends() < LEASE * 3);
    }
}

#[test]
fn time_in_which_the_monotonic_clock_stands_still_counts() {
    let mut worker = Faked::start(&[]);
    worker.renews(1);
    assert!(worker.program_runs());
    worker.order("away");
    // As good as asleep, as far as every clock but that of the leases goes.
    worker.set("+0 x0.0001");
    let before = worker.ask("clocks")[1];
    assert!(worker.program_ends() < LEASE * 3);
    let passed = worker.ask("clocks")[1] - before;
    assert!(
        passed < 100,
        "{passed} ms have passed by the worker's monotonic clock"
    );
}
