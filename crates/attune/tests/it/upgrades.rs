//! A cluster goes over to another release while it works, one process after the other, and half-way back once.
//!
//! In the ordinary run both releases are this program, and the migration that only adds is one that the test makes.
//! `scripts/try-upgrade` builds the next release and names both.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use attune_testkit::{Setup, System, Wiring};

use crate::restarts::{each_ran_once, go_through};
use crate::support;

/// Names the program of the release before, and of the one after; not set: this program.
const OLD: &str = "ATTUNE_TEST_OLD";
const NEXT: &str = "ATTUNE_TEST_NEXT";

/// What a next release adds to the schema, for the program that is none.
const ADDED: &str = "ALTER TABLE attune.execution_active ADD COLUMN of_a_later_release text;
    INSERT INTO attune.schema_migration VALUES (9998, 'additive_later', now(), true, '', 0)";

/// The documented order, with one executor that goes back and forth: `true` stands for the next release.
const STEPS: [(&str, bool); 10] = [
    ("migrate", true),
    ("completion-listener", true),
    ("stats", true),
    ("executor-1", true),
    ("executor-1", false),
    ("executor-2", true),
    ("executor-1", true),
    ("api", true),
    ("worker-1", true),
    ("worker-2", true),
];

fn program(variable: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(|| env!("CARGO_BIN_EXE_attune").into(), PathBuf::from)
}

/// Every execution runs exactly once, in order, within the limits, and the history shows no promise broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_rolling_upgrade() -> anyhow::Result<()> {
    let setup = Setup::new(program(OLD), Wiring::Cluster).executors(2);
    support::run(setup, async |system| {
        let steps = RefCell::new(STEPS.iter());
        let step = async |name: &str| {
            let is_next = steps.borrow_mut().next().context("no step is left")?.1;
            let program = program(if is_next { NEXT } else { OLD });
            replace(system, name, &program).await
        };
        let names = STEPS.map(|(name, _)| name.to_owned());
        let batches = go_through(system, 20, &names, step).await?;
        each_ran_once(system, batches).await
    })
    .await
}

/// Ends one process and starts it as another release, or brings the schema to that release.
async fn replace(system: &System, name: &str, program: &Path) -> anyhow::Result<()> {
    if name == "migrate" {
        let (code, said, problems) = system.command_of(program, &["migrate"]).await?;
        ensure!(code == 0, "{code}: {said}{problems}");
        if std::env::var_os(NEXT).is_none() {
            let mut connection = system.database()?.connect().await?;
            sqlx::raw_sql(ADDED).execute(&mut connection).await?;
        }
        return Ok(());
    }
    system.halt(name).await?;
    system.start_as(name, program).await
}
