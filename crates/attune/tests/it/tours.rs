//! The tours of the README, as somebody types them.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use tokio::process::Command;

/// Everything a tour promises to show is in what it prints.
#[tokio::test]
async fn cluster_tours_of_the_readme_run_word_for_word() -> anyhow::Result<()> {
    let binary = Path::new(env!("CARGO_BIN_EXE_attune"));
    let mut path = binary.parent().context("no folder")?.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").context("no PATH")?);
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/tours"))
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
        "(1 row)",
    ] {
        ensure!(said.contains(words), "{words:?} is missing in\n{said}");
    }
    Ok(())
}
