//! A guard as a process of its own: this test program, told to run [`the_guard_process`] alone.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use attune_core::{Attempt, ExecutionId, WorkerId};
use attune_store::{StoreError, WorkerLease, WorkerRow, WorkerStore};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::begun::{BegunMap, Former, former};
use crate::lease::{Leases, Registered};
use crate::options::WorkerOptions;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
#[ignore = "the guard process of the other tests, which start it with a pipe"]
fn the_guard_process() {
    let _ = run(false);
}

fn command() -> Vec<OsString> {
    let program = std::env::current_exe().unwrap();
    let name = "guard::tests::the_guard_process";
    let arguments = [name, "--exact", "--ignored", "--nocapture"].map(OsString::from);
    [program.into()].into_iter().chain(arguments).collect()
}

fn key(id: i64) -> Key {
    (ExecutionId(id), Attempt(1))
}

/// A program that leads a group of its own; it carries a mark only if it is given one.
fn program(mark: Option<String>) -> Child {
    let mut program = Command::new("sleep");
    if let Some(mark) = mark {
        program.env(VARIABLE, mark);
    }
    let program = program.arg("300").process_group(0).kill_on_drop(true);
    program.spawn().unwrap()
}

fn id(program: &Child) -> i32 {
    program.id().unwrap().try_into().unwrap()
}

/// Waits until a process was killed.
async fn killed(mut program: Child) {
    use std::os::unix::process::ExitStatusExt as _;
    let ended = tokio::time::timeout(PATIENCE, program.wait()).await;
    let status = ended.expect("it was to be killed").unwrap();
    assert_eq!(status.signal(), Some(9), "{status}");
}

/// A guard that kills by group and by mark alone.
fn start() -> Arc<Guard> {
    Guard::start_with(command(), Uuid::now_v7(), None)
}

impl Guard {
    /// Without a process.
    pub(crate) fn none() -> Arc<Self> {
        Self::start_with(Vec::new(), Uuid::now_v7(), None)
    }

    fn process(&self) -> Pid {
        let id = self.state().process.unwrap().try_into().unwrap();
        Pid::from_raw(id).unwrap()
    }

    async fn is_replaced(&self, first: Pid) {
        let deadline = in_(PATIENCE);
        while self.process() == first {
            assert!(Instant::now() < deadline, "it is not replaced");
            tokio::time::sleep(Duration::from_millis(5)).await; // poll
        }
    }

    /// Closes it; nothing is left of the process.
    async fn ends(&self) {
        let process = self.process();
        self.close().await;
        assert!(test_kill_process(process).is_err(), "it has not ended");
    }
}

fn in_(span: Duration) -> Instant {
    Instant::now() + span
}

fn boot_in(span: Duration) -> BootInstant {
    BootInstant::now() + span
}

#[tokio::test]
async fn what_runs_is_killed_when_its_lease_ends_and_only_that() {
    let guard = start();
    let (short, long) = (WorkerId::fresh(), WorkerId::fresh());
    guard.trust(short, boot_in(Duration::from_millis(300)));
    guard.trust(long, boot_in(Duration::from_secs(3600)));
    let began = Instant::now();
    // One is known by its group alone, one by its mark alone.
    let (grouped, mut other) = (program(None), program(None));
    let _watched = guard.watch(short, key(1), id(&grouped));
    let _other = guard.watch(long, key(2), id(&other));
    let marked = program(Some(guard.mark(short, key(3))));
    killed(grouped).await;
    killed(marked).await;
    assert!(began.elapsed() >= Duration::from_millis(250), "too early");
    // Begun by a worker that stood still meanwhile: its lease is not known any more.
    let late = program(None);
    let _late = guard.watch(short, key(4), id(&late));
    killed(late).await;
    // A lease may be lost before its time.
    let escaped = program(Some(guard.mark(long, key(5))));
    assert!(other.try_wait().unwrap().is_none(), "its lease goes on");
    guard.lost(long);
    killed(other).await;
    killed(escaped).await;
    guard.ends().await;
}

#[tokio::test]
async fn renewals_keep_what_runs() {
    let guard = start();
    let lease = WorkerId::fresh();
    let mut program = program(None);
    guard.trust(lease, boot_in(Duration::from_secs(2)));
    let watched = guard.watch(lease, key(1), id(&program));
    let until = in_(Duration::from_millis(3500));
    while Instant::now() < until {
        guard.trust(lease, boot_in(Duration::from_secs(2)));
        tokio::time::sleep(Duration::from_millis(50)).await; // poll
    }
    assert!(program.try_wait().unwrap().is_none());
    // What is over is not killed, whoever has its number now.
    drop(watched);
    guard.ends().await;
    assert!(program.try_wait().unwrap().is_none());
}

#[tokio::test]
async fn a_guard_that_dies_is_replaced_and_told_everything() {
    let guard = start();
    let lease = WorkerId::fresh();
    guard.trust(lease, boot_in(Duration::from_secs(3600)));
    let program = program(None);
    let _watched = guard.watch(lease, key(1), id(&program));
    let first = guard.process();
    kill_process(first, Signal::KILL).unwrap();
    guard.is_replaced(first).await;
    guard.close().await;
    killed(program).await;
}

#[tokio::test]
async fn a_guard_that_does_not_read_is_replaced_and_holds_nobody_up() {
    let guard = start();
    let lease = WorkerId::fresh();
    let first = guard.process();
    kill_process(first, Signal::STOP).unwrap();
    // Each of its threads goes on until it has noticed.
    let threads = format!("/proc/{}/task", first.as_raw_pid());
    let stands_still = || {
        let mut threads = std::fs::read_dir(&threads).unwrap().flatten();
        threads.all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat"));
            stat.is_ok_and(|stat| stat.contains(") T "))
        })
    };
    let deadline = in_(PATIENCE);
    while !stands_still() {
        assert!(Instant::now() < deadline, "it does not stop");
        tokio::time::sleep(Duration::from_millis(5)).await; // poll
    }
    // More than a pipe holds.
    for _ in 0..2000 {
        guard.trust(lease, boot_in(Duration::from_secs(3600)));
    }
    guard.is_replaced(first).await;
    assert!(test_kill_process(first).is_err(), "it is not killed");
    guard.ends().await;
}

#[tokio::test]
async fn a_new_guard_is_told_more_than_a_pipe_holds() {
    let guard = start();
    let lease = WorkerId::fresh();
    let last = program(None);
    {
        let mut state = guard.state();
        let known = state.leases.entry(lease).or_default();
        known.until = Some(BootInstant::from_nanos(i64::MAX));
        // Numbers that no process can have, besides one.
        known.groups.extend(0x7000_0000..0x7000_1000);
        known.groups.insert(id(&last));
        state.pipe = None;
    }
    guard.broken.notify_one();
    let deadline = in_(PATIENCE);
    while guard.state().pipe.is_none() || !guard.state().untold.is_empty() {
        assert!(Instant::now() < deadline, "it is not told all");
        tokio::time::sleep(Duration::from_millis(5)).await; // poll
    }
    guard.close().await;
    killed(last).await;
}

#[tokio::test]
async fn a_worker_without_a_guard_goes_on() {
    for command in [vec![], vec!["/does/not/exist".into()]] {
        let guard = Guard::start_with(command, Uuid::now_v7(), None);
        let lease = WorkerId::fresh();
        guard.trust(lease, boot_in(Duration::from_secs(3600)));
        let mut program = program(None);
        guard.watch(lease, key(1), id(&program)).end(false).await;
        assert!(program.try_wait().unwrap().is_none());
        guard.close().await;
    }
}

/// A program that, told to go, begins another one outside its session and its environment.
struct Escaping {
    program: Child,
    escaped: String,
}

impl Escaping {
    fn start() -> Child {
        Self::run(Command::new("/bin/sh"), "env -i setsid")
    }

    fn run(mut program: Command, with: &str) -> Child {
        let text = format!("read go; {with} sleep 300 > /dev/null & echo $!; wait");
        let program = program.args(["-c", &text]).process_group(0);
        let program = program.stdin(Stdio::piped()).stdout(Stdio::piped());
        program.kill_on_drop(true).spawn().unwrap()
    }

    async fn go(mut program: Child) -> Self {
        let mut stdin = program.stdin.take().unwrap();
        stdin.write_all(b"go\n").await.unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let escaped = lines.next_line().await.unwrap().unwrap();
        // Until it has left.
        let deadline = in_(PATIENCE);
        while std::fs::read(format!("/proc/{escaped}/cmdline")).unwrap() != b"sleep\x00300\x00" {
            assert!(Instant::now() < deadline, "it does not leave");
            tokio::time::sleep(Duration::from_millis(5)).await; // poll
        }
        Self { program, escaped }
    }

    fn is_gone(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.escaped));
        stat.map_or(true, |stat| stat.contains(") Z "))
    }
}

/// A guard with a cgroup, where the machine lets it have one.
fn start_with_cgroup() -> Option<(Arc<Guard>, PathBuf)> {
    let guard = Guard::start(command());
    let Some(cgroup) = guard.cgroup.clone() else {
        eprintln!("skipped: this machine has no cgroup v2 that may be written");
        return None;
    };
    Some((guard, cgroup))
}

#[tokio::test]
async fn nothing_leaves_the_cgroup_of_its_run() {
    let Some((guard, cgroup)) = start_with_cgroup() else {
        return;
    };
    let lease = WorkerId::fresh();
    guard.trust(lease, boot_in(Duration::from_secs(3600)));
    let mut escaping = Vec::new();
    for number in 1..=2 {
        let program = Escaping::start();
        let watched = guard.watch(lease, key(number), id(&program));
        // As its launcher does it before it becomes the program.
        let group = cgroup::of_run(&cgroup, lease, key(number));
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("cgroup.procs"), id(&program).to_string()).unwrap();
        escaping.push((Escaping::go(program).await, watched));
    }
    let (ended, watched) = escaping.remove(0);
    watched.end(false).await;
    assert!(ended.is_gone());
    assert!(!cgroup::of_run(&cgroup, lease, key(1)).exists());
    // As when the worker is gone: the other run was not ended by anybody.
    let (left, _watched) = escaping.remove(0);
    assert!(!left.is_gone());
    guard.ends().await;
    assert!(left.is_gone());
    assert!(!cgroup.exists());
    killed(left.program).await;
}

#[tokio::test]
async fn without_a_cgroup_a_run_that_is_ended_takes_along_what_carries_its_mark() {
    let guard = start();
    let lease = WorkerId::fresh();
    guard.trust(lease, boot_in(Duration::from_secs(3600)));
    let (mut leader, escaped) = (program(None), program(Some(guard.mark(lease, key(1)))));
    let mut other = program(Some(guard.mark(lease, key(2))));
    let watched = guard.watch(lease, key(1), id(&leader));
    leader.start_kill().unwrap();
    watched.end(true).await;
    killed(escaped).await;
    assert!(other.try_wait().unwrap().is_none(), "that is another run");
    guard.close().await;
    killed(other).await;
}

/// A store that lets a worker register and then ends its lease.
#[derive(Default)]
struct Store(AtomicUsize);

#[async_trait]
impl WorkerStore for Store {
    async fn renew_worker(&self, _: &WorkerLease) -> Result<(), StoreError> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(StoreError::Conflict("it has ended".to_owned())),
        }
    }

    async fn retire_worker(
        &self,
        _: WorkerId,
        _: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<(), StoreError> {
        Ok(())
    }

    async fn worker_over(
        &self,
        _: WorkerId,
        _: Option<&[(ExecutionId, Attempt)]>,
    ) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn principal_of(&self, _: WorkerId) -> Result<Option<Option<String>>, StoreError> {
        Ok(None)
    }

    async fn workers(&self) -> Result<Vec<WorkerRow>, StoreError> {
        Ok(Vec::new())
    }
}

#[tokio::test]
async fn the_guard_hears_of_leases_and_of_their_loss() {
    let guard = start();
    let options = WorkerOptions {
        lease_ttl: Duration::from_secs(3),
        ..WorkerOptions::default()
    };
    let store = Arc::new(Store::default());
    let leases = Leases::new(&options, store, Arc::clone(&guard), Box::new(|_| {}));
    let shutdown = CancellationToken::new();
    let leases = Arc::new(leases);
    let registered = leases.register(WorkerId::fresh(), &shutdown, || ());
    let Ok(Registered::Life(life)) = registered.await else {
        panic!("the store takes its lease");
    };
    assert!(guard.state().leases.contains_key(&life.worker()));
    let escaped = program(Some(guard.mark(life.worker(), key(1))));
    life.over().cancelled().await;
    killed(escaped).await;
    assert!(guard.state().leases.is_empty());
    guard.ends().await;
}

/// What a run costs. Run it with
/// `cargo nextest run -p attune-worker --run-ignored only cost --no-capture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, does not test"]
async fn cost_of_a_run() {
    const RUNS: u32 = 1000;
    let without = || Guard::start_with(Vec::new(), Uuid::now_v7(), None);
    let guards = [
        ("without a guard", without()),
        ("with a guard", start()),
        ("with a guard and a cgroup", Guard::start(command())),
    ];
    for (name, guard) in guards {
        let lease = WorkerId::fresh();
        guard.trust(lease, boot_in(Duration::from_secs(3600)));
        let (mut watching, mut waiting) = (Duration::ZERO, Duration::ZERO);
        let began = Instant::now();
        for number in 0..RUNS {
            let mut program = Command::new("true").process_group(0).spawn().unwrap();
            let began = Instant::now();
            let watched = guard.watch(lease, key(number.into()), id(&program));
            watching += began.elapsed();
            program.wait().await.unwrap();
            let began = Instant::now();
            watched.end(false).await;
            waiting += began.elapsed();
        }
        println!(
            "{name}: {} µs a run, of which {} µs at its start and {} µs at its end",
            (began.elapsed() / RUNS).as_micros(),
            (watching / RUNS).as_micros(),
            (waiting / RUNS).as_micros()
        );
        guard.close().await;
    }
}

/// It was begun without a launcher, in no cgroup, so only its mark tells whose it is.
#[tokio::test]
async fn who_left_the_group_of_a_run_without_a_cgroup_is_found_by_its_mark() {
    let guard = Guard::start(command());
    let lease = WorkerId::fresh();
    guard.trust(lease, boot_in(Duration::from_secs(3600)));
    let mut program = Command::new("/bin/sh");
    program.env(line::VARIABLE, guard.mark(lease, key(1)));
    let left = Escaping::go(Escaping::run(program, "setsid")).await;
    let watched = guard.watch(lease, key(1), id(&left.program));
    assert!(!left.is_gone());
    watched.end(true).await;
    assert!(left.is_gone());
    killed(left.program).await;
    guard.close().await;
}

/// As long as something may be left, nobody may give its slot to others.
#[tokio::test]
async fn what_had_begun_may_be_told_when_the_worker_is_gone_and_nothing_of_it_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let guard = start();
    let lives = [(); 3].map(|()| WorkerId::fresh());
    let [killed_with_it, lost, unwritten] = lives;
    let maps = lives.map(|life| {
        guard.trust(life, boot_in(Duration::from_secs(3600)));
        let mut map = BegunMap::make(dir.path(), life, &guard).unwrap();
        guard.begun(life, Some(map.path().to_owned()));
        map.begin(&[key(7)], |_| true).unwrap();
        map
    });
    guard.lost(lost);
    guard.begun(unwritten, None);
    // Its successor is told everything once more.
    let first = guard.process();
    kill_process(first, Signal::KILL).unwrap();
    guard.is_replaced(first).await;
    let running = program(None);
    let _watched = guard.watch(killed_with_it, key(7), id(&running));
    maps.iter().for_each(BegunMap::let_go);
    assert_eq!(former(dir.path()).unwrap(), []);
    guard.ends().await;
    killed(running).await;
    let expected = Former {
        worker: killed_with_it,
        path: maps[0].path().to_owned(),
        begun: Some(vec![key(7)]),
    };
    assert_eq!(former(dir.path()).unwrap(), [expected]);
}

#[tokio::test]
async fn in_the_place_of_a_guard_comes_only_who_is_alone() {
    let child = program(None);
    let own = rustix::process::getpid();
    let child_id = Pid::from_raw(id(&child)).unwrap();
    assert!(process::are_begun_here(&[own, child_id]));
    // Whoever was there before is the child of somebody else.
    assert!(!process::are_begun_here(&[own, Pid::INIT]));
    assert!(!process::are_begun_here(&[
        rustix::process::getppid().unwrap()
    ]));
    // Below another group nothing of a former worker is this one's to judge.
    assert!(!ends_in_its_place(
        Uuid::now_v7(),
        Path::new("/sys/fs/cgroup/elsewhere/attune-x")
    ));
}
