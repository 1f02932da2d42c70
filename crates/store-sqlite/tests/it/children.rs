//! Processes that use a store until they are told to stop, or killed.
//!
//! They are tests of this very binary that do nothing unless a test starts them with the name of
//! a file in their environment.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Lines, Read as _};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

use attune_core::{OwnerId, WorkerId};
use attune_store::{Batch, PartitionStore as _, Store as _, WorkerLease, WorkerStore as _};
use attune_store_sqlite::{SqliteOptions, SqliteStore};

use crate::support::Owner;

/// Opens the file, says so, and waits.
pub(crate) const HOLDS_THE_FILE: &str = "children::holds_the_file";
/// Writes one batch after another and says so after each.
pub(crate) const COMMITS_WITHOUT_END: &str = "children::commits_without_end";
/// How many executions each of those batches inserts.
pub(crate) const BATCH: usize = 40;

const FILE: &str = "ATTUNE_TEST_SQLITE_FILE";

/// What the children say begins with this, among what the test harness prints.
const MARK: &str = "child: ";

/// A process that is killed when it is dropped.
pub(crate) struct Child {
    process: std::process::Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts one of the tests below on `file`.
    pub(crate) fn start(test: &str, file: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--ignored", "--nocapture"])
            .env(FILE, file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let stdout = process.stdout.take().unwrap();
        Self {
            process,
            lines: BufReader::new(stdout).lines(),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The next thing it says.
    ///
    /// # Panics
    /// When it ends without a word.
    pub(crate) fn line(&mut self) -> String {
        self.next_line().expect("the child has ended")
    }

    fn next_line(&mut self) -> Option<String> {
        self.lines
            .by_ref()
            .map(Result::unwrap)
            // The harness writes the name of the test before the first line, without a newline.
            .find_map(|line| Some(line.split_once(MARK)?.1.to_owned()))
    }

    /// Kills it as nothing can prevent; gives the number of batches it has said to be written.
    pub(crate) fn kill(&mut self) -> usize {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let mut written = 0;
        while let Some(line) = self.next_line() {
            written = line.strip_prefix("committed ").unwrap().parse().unwrap();
        }
        written + 1
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It has ended already in every test that passes.
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// Far longer than a test takes.
const LONG: Duration = Duration::from_secs(3600);

pub(crate) fn worker(name: &str) -> WorkerLease {
    WorkerLease {
        worker: WorkerId::fresh(),
        name: name.to_owned(),
        pool: "default".to_owned(),
        slots: 1,
        draining: false,
        ttl: LONG,
        broker_user: None,
        principal: None,
    }
}

fn file() -> Option<OsString> {
    std::env::var_os(FILE)
}

#[tokio::test]
#[ignore = "started by other tests"]
async fn holds_the_file() {
    let Some(file) = file() else { return };
    let store = SqliteStore::open(SqliteOptions::new(file)).await.unwrap();
    store.migrate().await.unwrap();
    println!("{MARK}open");
    let mut rest = String::new();
    std::io::stdin().read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "nobody writes to it");
    store.close().await;
}

#[tokio::test]
#[ignore = "started by other tests"]
async fn commits_without_end() {
    let Some(file) = file() else { return };
    let store = SqliteStore::open(SqliteOptions::new(file)).await.unwrap();
    store.migrate().await.unwrap();
    let mut owner = Owner::of(&store).await;
    store
        .renew_executor(OwnerId::fresh(), "child", LONG, false)
        .await
        .unwrap();
    store.renew_worker(&worker("child")).await.unwrap();
    for n in 0..100_000 {
        let batch = Batch {
            inserts: owner.queued(u32::try_from(BATCH).unwrap()),
            totals: owner.totals(n),
            ..owner.batch()
        };
        store.commit(&batch).await.unwrap();
        println!("{MARK}committed {n}");
    }
    panic!("nobody has stopped it");
}
