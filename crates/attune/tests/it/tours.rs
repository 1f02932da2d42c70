//! The tours of the README and of the page about policies, as somebody types them.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use tokio::process::Command;

/// Runs the tours of a page; gives what they printed.
async fn said(page: &str) -> anyhow::Result<String> {
    let binary = Path::new(env!("CARGO_BIN_EXE_attune"));
    let mut path = binary.parent().context("no folder")?.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").context("no PATH")?);
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/tours"))
        .arg(page)
        .env("PATH", path)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let said = String::from_utf8_lossy(&output.stdout);
    let typed = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}\n{said}\n{typed}",
        output.status
    );
    Ok(said.into_owned())
}

/// Everything a tour promises to show is in what it prints.
#[tokio::test]
async fn cluster_tours_of_the_readme_run_word_for_word() -> anyhow::Result<()> {
    let said = said("README.md").await?;
    let queue = said
        .lines()
        .find(|line| line.starts_with("shop.greet") && line.contains("healthy"))
        .with_context(|| format!("no queue of shop.greet in\n{said}"))?;
    let figures: Vec<&str> = queue.split_whitespace().skip(1).take(3).collect();
    ensure!(
        figures == ["3", "2", "2"],
        "not 3 waiting, 2 active: {queue}"
    );
    let queued = said
        .lines()
        .filter(|line| line.contains(" queued "))
        .count();
    ensure!(queued >= 3, "{queued} are queued in the list:\n{said}");
    for words in [
        r#""message": "hi""#,
        r#""repeated":false"#,
        "the schema is up to date",
        r#""hello": "world""#,
        "max_concurrent",
        "-[ RECORD 1 ]",
    ] {
        ensure!(said.contains(words), "{words:?} is missing in\n{said}");
    }
    ensure!(!said.contains("RECORD 2"), "more than one queue in\n{said}");
    Ok(())
}

/// Likewise.
#[tokio::test]
async fn embedded_tour_of_the_policies_runs_word_for_word() -> anyhow::Result<()> {
    let said = said("docs/POLICIES.md").await?;
    let refused = said.matches("refused, as it should be").count();
    ensure!(refused == 4, "{refused} were refused:\n{said}");
    for words in [
        "for room in its group: 1 of 1 is taken, it is the next of its group",
        "refused until midnight, UTC",
        "end code     DROPPED",
        "operation 1: 2 of 2 reprioritised",
        "its priority is high, the highest that policies allow",
        r#""priority": "high""#,
        r#""priority": "low""#,
        "succeeded",
        "the books are being closed",
        "4 could be applied, 4 of them would change something",
        "in force in 16 of 16 partitions",
        "its priority is normal, the highest",
        "too early",
        "initial_ms: 500",
    ] {
        ensure!(said.contains(words), "{words:?} is missing in\n{said}");
    }
    Ok(())
}
