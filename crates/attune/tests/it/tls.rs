//! The API over TLS, and those who speak to it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use attune_testkit::certificates::Authority;
use attune_testkit::{Launch, Process, variable, wait_for};
use tokio::process::Command;

/// A client command, and nothing of the developer's own.
fn attune(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_attune"));
    command
        .args(args)
        .env_clear()
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Its exit code, stdout and stderr.
async fn run(mut command: Command) -> anyhow::Result<(Option<i32>, String, String)> {
    let output = command.output().await?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    ))
}

/// A system that speaks TLS under the name `localhost`, in a folder of its own, and asks for keys or does not.
async fn standalone(folder: &Path, authority: &Authority, auth: &str) -> anyhow::Result<Process> {
    let (cert, key) = authority.server(&["localhost"]).write(folder);
    let data = folder.join("data");
    let settings = [
        ("data_dir", data.display().to_string()),
        ("api.listen", "127.0.0.1:0".to_owned()),
        ("api.auth", auth.to_owned()),
        ("api.tls.cert_file", cert.display().to_string()),
        ("api.tls.key_file", key.display().to_string()),
        ("ops.listen", "127.0.0.1:0".to_owned()),
        // The Python worker serves the default pool.
        ("worker.pool", "bundled".to_owned()),
        ("log.format", "text".to_owned()),
    ];
    Process::start(Launch {
        name: "standalone".to_owned(),
        binary: env!("CARGO_BIN_EXE_attune").into(),
        args: vec!["standalone".to_owned()],
        env: BTreeMap::from(settings.map(|(key, value)| (variable(key), value))),
        folder: folder.to_owned(),
    })
    .await
}

/// Where it listens, by the name that its certificate is for.
async fn base(process: &Process) -> anyhow::Result<String> {
    let said = wait_for("the address", async || {
        let said = process.announced("Attune listens on ");
        said.context("it is not told")
    })
    .await?;
    let port = said.strip_prefix("https://127.0.0.1:");
    let port = port.with_context(|| format!("it listens on {said}"))?;
    Ok(format!("https://localhost:{port}"))
}

/// Every client reaches it that knows the authority, and tells what is wrong otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_clients_speak_tls() -> anyhow::Result<()> {
    let (folder, authority) = (tempfile::tempdir()?, Authority::new("good"));
    let process = standalone(folder.path(), &authority, "off").await?;
    let outcome = clients(folder.path(), &authority, &process).await;
    outcome.with_context(|| format!("the log:\n{}", process.tail()))
}

async fn clients(folder: &Path, authority: &Authority, process: &Process) -> anyhow::Result<()> {
    let url = base(process).await?;
    let (ca, other) = (folder.join("ca.pem"), folder.join("other.pem"));
    std::fs::write(&ca, &authority.pem)?;
    std::fs::write(&other, &Authority::new("other").pem)?;
    let (ca, other) = (ca.display().to_string(), other.display().to_string());

    let listed = run(attune(&["queues", "--url", &url, "--ca-file", &ca])).await?;
    ensure!(listed.0 == Some(0), "{listed:?}");
    let mut by_variable = attune(&["health", "--url", &url]);
    by_variable.env("ATTUNE_CA_FILE", &ca);
    let health = run(by_variable).await?;
    ensure!(health.0 == Some(0), "{health:?}");

    let by_address = url.replace("localhost", "127.0.0.1");
    let plain = url.replace("https", "http");
    let missing = folder.join("none").display().to_string();
    let key = folder.join("api.key").display().to_string();
    for (url, file, code, words) in [
        (
            &url,
            &other,
            3,
            "UnknownIssuer: no authority that is believed here has signed it; name the file",
        ),
        (&by_address, &ca, 3, "use one of its names in the URL"),
        (&plain, &ca, 2, "TLS is spoken here: use https://"),
        (&url, &missing, 2, "No such file"),
        (&url, &key, 2, "there is no certificate in it"),
    ] {
        let args = [
            "queues",
            "--connect-timeout",
            "0",
            "--url",
            url,
            "--ca-file",
            file,
        ];
        let (ended, _, stderr) = run(attune(&args)).await?;
        ensure!(
            ended == Some(code) && stderr.contains(words),
            "{ended:?}: {stderr}"
        );
        let args = ["health", "--url", url, "--ca-file", file];
        let (ended, _, stderr) = run(attune(&args)).await?;
        ensure!(ended == Some(1), "{ended:?}: {stderr}");
    }

    let _python = python(folder, &url, &ca, &[])?;
    echo(&url, &ca, None).await
}

/// A worker in Python.
fn python(folder: &Path, url: &str, ca: &str, env: &[(&str, &str)]) -> anyhow::Result<Process> {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python");
    let worker = format!("{examples}/http_worker.py");
    // What Python has compiled is no part of the examples.
    let env = [("PYTHONDONTWRITEBYTECODE", "1")].iter().chain(env);
    Process::spawn(Launch {
        name: "python".to_owned(),
        binary: "/usr/bin/env".into(),
        args: ["python3", &worker, "--api", url, "--ca-file", ca]
            .map(str::to_owned)
            .into(),
        env: env
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        folder: folder.to_owned(),
    })
}

/// An execution, to its end.
async fn echo(url: &str, ca: &str, key_file: Option<&str>) -> anyhow::Result<()> {
    let mut command = attune(&["submit", "core.echo", "--param", "message=hi", "--wait"]);
    command.args(["--timeout", "60", "--url", url, "--ca-file", ca]);
    command.args(key_file.map(|file| format!("--key-file={file}")));
    let submitted = run(command).await?;
    ensure!(submitted.0 == Some(0), "{submitted:?}");
    Ok(())
}

/// As beyond loopback: TLS lets nobody do anything who has no key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_a_key_is_asked_for_over_tls() -> anyhow::Result<()> {
    let (folder, authority) = (tempfile::tempdir()?, Authority::new("good"));
    let process = standalone(folder.path(), &authority, "required").await?;
    let outcome = with_keys(folder.path(), &authority, &process).await;
    outcome.with_context(|| format!("the log:\n{}", process.tail()))
}

async fn with_keys(folder: &Path, authority: &Authority, process: &Process) -> anyhow::Result<()> {
    let url = base(process).await?;
    let ca = folder.join("ca.pem");
    std::fs::write(&ca, &authority.pem)?;
    let ca = ca.display().to_string();
    let there = ["--url", &url, "--ca-file", &ca];
    let (code, _, stderr) = run(attune(&[&["queues"][..], &there].concat())).await?;
    ensure!(
        code == Some(2) && stderr.contains("a key is needed"),
        "{code:?}: {stderr}"
    );

    let admin = folder.join("data/admin.key").display().to_string();
    let create = [
        "keys", "create", "python", "--role", "worker", "--pool", "*",
    ];
    let made = run(attune(
        &[&create[..], &["--key-file", &admin], &there].concat(),
    ))
    .await?;
    ensure!(made.0 == Some(0), "{made:?}");
    let _python = python(folder, &url, &ca, &[("ATTUNE_KEY", made.1.trim())])?;
    echo(&url, &ca, Some(&admin)).await
}

/// Nothing begins with a certificate that nobody could believe, and the message names setting and file.
#[tokio::test]
async fn embedded_a_certificate_that_cannot_be_used_is_told_at_the_start() -> anyhow::Result<()> {
    let (folder, authority) = (tempfile::tempdir()?, Authority::new("good"));
    authority.server(&["localhost"]).write(folder.path());
    let (cert, _) = authority.server(&["localhost"]).write(&{
        let other = folder.path().join("other");
        std::fs::create_dir(&other)?;
        other
    });
    let key = folder.path().join("api.key");
    let set = |key: &str, path: &Path| format!("{key}={}", path.display());
    let mut command = attune(&["standalone", "--set", "api.listen=127.0.0.1:0"]);
    command.args(["--set", &set("data_dir", &folder.path().join("data"))]);
    command.args(["--set", &set("api.tls.cert_file", &cert)]);
    command.args(["--set", &set("api.tls.key_file", &key)]);
    let (code, _, stderr) = run(command).await?;
    let words = format!(
        "api.tls.key_file: {}: it is not the key of the first certificate in {}",
        key.display(),
        cert.display()
    );
    ensure!(
        code == Some(1) && stderr.contains(&words),
        "{code:?}: {stderr}"
    );
    Ok(())
}
