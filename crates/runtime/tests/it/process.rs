//! What concerns a whole process: signals and the service manager. Each test starts this test
//! binary once more as the process in question, told by a variable what to play.

use std::io::{BufRead, BufReader, ErrorKind, Lines, Write as _};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use attune_runtime::{Health, Shutdown, systemd};
use rustix::process::{Pid, Signal, kill_process};

const ROLE: &str = "ATTUNE_TEST_ROLE";
const LONG: Duration = Duration::from_secs(30);

/// A process that plays a role; killed and awaited if the test ends before it does.
struct Actor {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Actor {
    fn start(test: &str, role: &str, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Reads on until the role says this; the test runner's own words are passed over.
    fn wait_for(&mut self, word: &str) {
        let found = self
            .lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.ends_with(word));
        assert!(found, "the process ended without saying {word:?}");
    }

    /// Gives the role a cue.
    fn cue(&mut self) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(b"\n").unwrap();
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn end(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // Ended already when the test went well; then both fail, which is fine.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The role that this process is to play, unless it is the test itself.
fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A daemon that stops at the first signal, or only pretends to.
fn play_daemon(stubborn: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let outcome = runtime.block_on(async {
        let shutdown = Shutdown::new();
        shutdown.listen_for_signals().unwrap();
        let stop = shutdown.clone();
        shutdown.spawn("loop", async move {
            println!("started");
            stop.cancelled().await;
            println!("stopping");
            if stubborn {
                std::future::pending::<()>().await;
            }
        });
        shutdown.wait(LONG).await
    });
    assert_eq!(outcome, Ok(()));
    // A code of its own, to tell it from the test runner's.
    std::process::exit(42);
}

#[test]
fn a_signal_stops_the_process_in_order() {
    const TEST: &str = "process::a_signal_stops_the_process_in_order";
    if role().is_some() {
        return play_daemon(false);
    }
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Actor::start(TEST, "daemon", &[]);
        daemon.wait_for("started");
        daemon.signal(signal);
        daemon.wait_for("stopping");
        assert_eq!(daemon.end().code(), Some(42));
    }
}

#[test]
fn a_second_signal_ends_the_process_at_once() {
    const TEST: &str = "process::a_second_signal_ends_the_process_at_once";
    if role().is_some() {
        return play_daemon(true);
    }
    for (second, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut daemon = Actor::start(TEST, "daemon", &[]);
        daemon.wait_for("started");
        daemon.signal(Signal::TERM);
        daemon.wait_for("stopping");
        daemon.signal(second);
        let status = daemon.end();
        assert_eq!(status.code(), Some(code), "signal {:?}", status.signal());
    }
}

fn play_service() {
    systemd::ready();
    systemd::status("owns 16\npartitions");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(systemd::while_stopping(async {}));
    systemd::stopping();
}

#[test]
fn the_service_manager_is_told() {
    const TEST: &str = "process::the_service_manager_is_told";
    if role().is_some() {
        return play_service();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();

    let service = Actor::start(
        TEST,
        "service",
        &[("NOTIFY_SOCKET", path.to_str().unwrap())],
    );
    let mut buffer = [0; 256];
    for expected in [
        "READY=1\n",
        "STATUS=owns 16 partitions\n",
        "EXTEND_TIMEOUT_USEC=60000000\n",
        "STOPPING=1\n",
    ] {
        let length = socket.recv(&mut buffer).unwrap();
        assert_eq!(std::str::from_utf8(&buffer[..length]).unwrap(), expected);
    }
    assert!(service.end().success());
}

/// A daemon whose loop makes its rounds, stands still at the first cue, and goes on at the second.
fn play_loop() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let health = Health::new();
        let progress = health.progress("loop", Duration::from_millis(100));
        systemd::watchdog(&health);
        let mut cue =
            tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        let mut rounds = tokio::time::interval(Duration::from_millis(10));
        while !cue.is_finished() {
            rounds.tick().await;
            progress.stamp();
        }
        cue = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        cue.await.unwrap().unwrap();
        loop {
            rounds.tick().await;
            progress.stamp();
        }
    });
}

#[test]
fn the_watchdog_hears_nothing_of_a_loop_that_stands_still() {
    const TEST: &str = "process::the_watchdog_hears_nothing_of_a_loop_that_stands_still";
    if role().is_some() {
        return play_loop();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    let next = |patience| {
        socket.set_read_timeout(Some(patience)).unwrap();
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer)?;
        Ok::<_, std::io::Error>(String::from_utf8(buffer[..length].to_vec()).unwrap())
    };
    let variables = [
        ("NOTIFY_SOCKET", path.to_str().unwrap()),
        ("WATCHDOG_USEC", "200000"),
    ];
    let mut daemon = Actor::start(TEST, "loop", &variables);
    let until = |wanted: &str| loop {
        let message = next(LONG).unwrap();
        if message.starts_with(wanted) {
            return;
        }
    };
    until("WATCHDOG=1\n");
    until("WATCHDOG=1\n");
    daemon.cue();
    until("STATUS=no progress: loop: no round for ");
    // Several times what the watchdog would wait.
    let silence = next(Duration::from_secs(1)).unwrap_err();
    assert_eq!(silence.kind(), ErrorKind::WouldBlock);
    daemon.cue();
    until("WATCHDOG=1\n");
}

#[test]
fn without_a_service_manager_nothing_happens() {
    const TEST: &str = "process::without_a_service_manager_nothing_happens";
    if role().is_some() {
        return play_service();
    }
    // A socket that does not exist is only logged; an unset variable is not even that.
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    for variables in [vec![], vec![("NOTIFY_SOCKET", gone.to_str().unwrap())]] {
        assert!(Actor::start(TEST, "service", &variables).end().success());
    }
}
