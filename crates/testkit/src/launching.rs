//! How the processes of a system are started.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, ensure};

use crate::chaos::Clocks;
use crate::setup::{Setup, Wiring, variable};
use crate::{Launch, Process};

/// How to start one process of a system.
pub(crate) fn launch(setup: &Setup, name: &str, folder: &Path) -> anyhow::Result<Launch> {
    let role = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '-');
    let settings = setup.settings.iter().filter(|(_, value)| !value.is_empty());
    let mut env: BTreeMap<String, String> = settings
        .map(|(key, value)| (variable(key), value.clone()))
        .collect();
    let pool = setup
        .settings
        .get("worker.pool")
        .map_or("default", String::as_str);
    for (key, value) in setup.accounts.settings(role, pool) {
        env.insert(variable(key), value);
    }
    env.insert(variable("worker.name"), name.to_owned());
    env.insert(variable("executor.name"), name.to_owned());
    if role == "worker" {
        // Tests may run as root.
        env.entry(variable("worker.allow_root"))
            .or_insert_with(|| "true".to_owned());
    }
    if !matches!(role, "api" | "standalone") {
        env.insert(variable("metrics.listen"), "127.0.0.1:0".to_owned());
    }
    if setup.clocks {
        env.extend(Clocks::new(folder.join("clocks"))?.variables(name)?);
    }
    Ok(Launch {
        name: name.to_owned(),
        binary: setup.binary.clone(),
        args: vec![role.to_owned()],
        env,
        folder: folder.to_owned(),
    })
}

/// The first key of a system that asks for keys, as its operator gets it.
pub(crate) async fn first_key(setup: &Setup, folder: &Path) -> anyhow::Result<String> {
    if setup.wiring == Wiring::Embedded {
        let data = &setup.settings["data_dir"];
        let key = std::fs::read_to_string(Path::new(data).join("admin.key"));
        return Ok(key.context("the first key")?.trim().to_owned());
    }
    made_key(launch(setup, "operator", folder)?, folder, &[]).await
}

/// A key that may do everything, made in the database that a process like this one would use.
pub(crate) async fn made_key(
    mut launch: Launch,
    folder: &Path,
    more: &[&str],
) -> anyhow::Result<String> {
    let file = folder.join("operator.key");
    launch.args = ["keys", "create", "operator", "--database", "--pool", "*"]
        .map(str::to_owned)
        .to_vec();
    for role in ["admin", "worker"] {
        launch.args.extend(["--role".to_owned(), role.to_owned()]);
    }
    launch.args.extend(more.iter().map(|it| (*it).to_owned()));
    launch.args.push("--out".to_owned());
    launch.args.push(file.to_string_lossy().into_owned());
    let mut process = Process::spawn(launch)?;
    let status = process.end().await?;
    ensure!(
        status.success(),
        "attune keys ended with {status}:\n{}",
        process.tail()
    );
    Ok(std::fs::read_to_string(file)?.trim().to_owned())
}

/// Runs `attune migrate` to its end.
pub(crate) async fn migrate(setup: &Setup, folder: &Path) -> anyhow::Result<()> {
    let mut process = Process::spawn(launch(setup, "migrate", folder)?)?;
    let status = process.end().await?;
    ensure!(
        status.success(),
        "attune migrate ended with {status}:\n{}",
        process.tail()
    );
    Ok(())
}
