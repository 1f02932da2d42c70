//! `attune doctor`: nothing is found on a system that is well, and of each thing that is broken the one check that is
//! about it says so, with the way out.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use attune_testkit::certificates::Authority;
use attune_testkit::chaos::Clocks;
use attune_testkit::collector::Collector;
use attune_testkit::{System, Way, Wiring, wait_for};
use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use reqwest::Url;
use serde_json::json;

use crate::doctor_support::{NOTHING_RUNS, Report, Servers, and};
use crate::support::{limited, noop, on_both_wirings, run, setup};

/// Longer than this nobody waits for it, whatever hangs: twice what it waits for a server, and some for a busy machine.
const END: Duration = Duration::from_secs(30);

/// What an operator of a system is told, with these arguments besides.
async fn asked(system: &System, more: &[&str]) -> anyhow::Result<Report> {
    let standalone = match system.wiring() {
        Wiring::Embedded => &["--role", "standalone"][..],
        Wiring::Cluster => &[],
    };
    let args = [&["doctor", "--json"], standalone, more].concat();
    Report::of(system.command(&args).await?)
}

on_both_wirings! {
    a_system_that_is_well => embedded_a_system_that_is_well, cluster_a_system_that_is_well;
}

/// Nothing is found, and nothing is changed; each kind of process that is gone is missed.
async fn a_system_that_is_well(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    api.apply(&limited("it.well", &noop(), 1)).await?;
    api.submit("it.well", json!({})).await?;
    api.until_idle("it.well").await?;
    wait_for("nothing to be found", async || {
        asked(system, &[]).await?.is_well()
    })
    .await?;
    // Nobody serves its pool.
    let mut unserved = limited("it.unserved", &noop(), 1);
    unserved["pool"] = json!("nobody");
    api.apply(&unserved).await?;
    let waits = api.submit("it.unserved", json!({})).await?.id;
    wait_for("a queue that is not well", async || {
        let report = asked(system, &[]).await?;
        report.has_problems(&["cluster/queues"], "no worker of the pool")
    })
    .await?;
    api.cancel(waits).await?.expect(202)?;
    wait_for("nothing to be found", async || {
        asked(system, &[]).await?.is_well()
    })
    .await?;
    if system.wiring() == Wiring::Embedded {
        let (code, out, _) = system.command(&["doctor", "--role", "standalone"]).await?;
        ensure!(code <= 1 && out.contains("\n0 problems, "), "{out}");
        for line in out.lines() {
            ensure!(line.chars().count() <= 100, "{line}");
        }
        let report = asked(system, &["--set", "cluster.partitions=5"]).await?;
        return report.has_problems(&["cluster/partitions"], "set cluster.partitions to 4");
    }
    system.halt("worker-1").await?;
    system.halt("worker-2").await?;
    let report = asked(system, &[]).await?;
    report.has_problems(&["cluster/workers"], "start `attune worker`")?;
    system.kill("executor").await?;
    wait_for("partitions without an owner", async || {
        let report = asked(system, &[]).await?;
        report.says("cluster/owners", "leases ran out")?;
        report.says("cluster/executors", "no executor lives")?;
        report.says(
            "broker/readers",
            "see whether these run and reach the broker: executor",
        )
    })
    .await?;
    system.start_again("executor").await?;
    system.start_again("worker-1").await?;
    system.start_again("worker-2").await?;
    wait_for("nothing to be found", async || {
        asked(system, &[]).await?.is_well()
    })
    .await
}

/// The file of `standalone`: who may use it, whether it is whole, and whether somebody uses it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_a_file_that_is_not_well() -> anyhow::Result<()> {
    let system = System::start(setup(Wiring::Embedded)).await?;
    let file = system.folder().join("data/attune.db");
    let mode = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode));
    mode(0o644)?;
    let report = asked(&system, &[]).await?;
    report.has_problems(&["database/file"], "chmod 600 ")?;
    mode(0o600)?;
    report.says(
        "database/process",
        &format!("process {}", system.pid("standalone").await?),
    )?;
    let empty = tempfile::tempdir()?;
    let other = format!("data_dir={}", empty.path().display());
    let report = asked(&system, &["--set", &other]).await?;
    report.has_problems(&["database/file"], "start `attune standalone`")?;
    ensure!(
        std::fs::read_dir(empty.path())?.next().is_none(),
        "it makes files"
    );
    system.halt("standalone").await?;
    let before = std::fs::read(&file)?;
    let beside = || -> anyhow::Result<usize> {
        Ok(std::fs::read_dir(system.folder().join("data"))?.count())
    };
    let files = beside()?;
    let report = asked(&system, &[]).await?;
    report.says("database/process", "nobody uses it")?;
    ensure!(
        report.in_state("warning") == ["database/process"],
        "{:#}",
        report.shown
    );
    let is_same = std::fs::read(&file)? == before && beside()? == files;
    ensure!(is_same, "it changes the file, or leaves others");
    // Pages in the middle that are none.
    let mut broken = before;
    let (from, to) = (4096 * 3, broken.len() / 2);
    broken[from..to].fill(0xA5);
    let copy = empty.path().join("attune.db");
    std::fs::write(&copy, broken)?;
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o600))?;
    let report = asked(&system, &["--set", &other]).await?;
    ensure!(report.code == 2, "{:#}", report.shown);
    ensure!(
        report
            .in_state("problem")
            .iter()
            .any(|it| it == "database/integrity" || it == "database/readable"),
        "{:#}",
        report.shown
    );
    system.start_again("standalone").await?;
    system.stop().await
}

/// Each part's own user of the broker may ask, and is told what it may not see.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_users_with_few_rights() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster).accounts(), async |system| {
        for (role, part) in [
            ("worker", "attune-worker-default"),
            ("executor", "attune-executor"),
            ("completion-listener", "attune-listener"),
            ("stats", "attune-stats"),
            ("api", "attune-api"),
        ] {
            let broker = format!("broker.url={}", system.broker_of(part)?);
            let args = ["--role", role, "--set", &broker];
            wait_for("nothing to be found", async || {
                asked(system, &args).await?.is_well()
            })
            .await?;
            let report = asked(system, &args).await?;
            report.says("broker/queues", "may not compare their arguments")?;
            if !report
                .in_state("skipped")
                .contains(&"broker/sending".to_owned())
            {
                let user = system.user_of(part);
                report.says("broker/sending", &format!("vouches for `{user}`"))?;
            }
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_database_that_is_not_well() -> anyhow::Result<()> {
    let servers = Servers::create().await?;
    let report = servers.doctor(&[]).await?;
    report.says("database/schema", "run `attune migrate`")?;
    report.says("broker/queues", "run `attune topology apply`")?;
    ensure!(report.code == 2, "{}", report.code);
    let (code, _, stderr) = servers.run(&["keys", "list", "--database"], &[]).await?;
    let words = "attune: the schema does not fit: it is missing; run `attune migrate`\n";
    ensure!(code == 1 && stderr == words, "{code} {stderr}");
    servers.must(&["migrate"]).await?;
    servers.must(&["topology", "apply"]).await?;
    let report = servers.doctor(&[]).await?;
    report.has_problems(&NOTHING_RUNS, "nobody reads")?;

    let newest = "(SELECT max(version) FROM attune.schema_migration)";
    let finish = |done| {
        format!("UPDATE attune.schema_migration SET success = {done} WHERE version = {newest}")
    };
    servers.execute(&finish(false)).await?;
    let report = servers.doctor(&[]).await?;
    report.says("database/schema", "was not finished")?;
    report.says("cluster/everything", "cannot be read")?;
    servers.execute(&finish(true)).await?;
    let additive = "INSERT INTO attune.schema_migration
        SELECT 9999, 'additive_later', installed_on, success, checksum, execution_time
        FROM attune.schema_migration WHERE version = 1";
    servers.execute(additive).await?;
    servers
        .doctor(&[])
        .await?
        .says("database/schema", "migration 9999, newer than")?;
    servers
        .execute("DELETE FROM attune.schema_migration WHERE version = 9999")
        .await?;

    // Somebody who changes the schema and does not come to an end.
    let mut locking = servers.database.connect().await?;
    let lock = "BEGIN; LOCK TABLE attune.schema_migration IN ACCESS EXCLUSIVE MODE";
    sqlx::raw_sql(lock).execute(&mut locking).await?;
    let report = servers.doctor(&[]).await?;
    report.says("database/schema", "timeout")?;
    report.says("cluster/everything", "cannot be read")?;
    sqlx::raw_sql("ROLLBACK").execute(&mut locking).await?;

    let report = servers.with("cluster.partitions", "1").await?;
    report.says("cluster/partitions", "set cluster.partitions to 2")?;
    let mut wrong = Url::parse(servers.database.url())?;
    wrong.set_path("no_such_database");
    let report = servers.with("database.url", wrong.as_str()).await?;
    report.says("database/reachable", "no_such_database")?;
    ensure!(
        report
            .in_state("problem")
            .contains(&"database/reachable".to_owned()),
        "{:#}",
        report.shown
    );

    // What the upkeep has not made, and what it has not cleaned.
    let days = "DO $$ DECLARE one regclass; BEGIN
        FOR one IN SELECT inhrelid::regclass FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
            WHERE inhparent = 'attune.execution_history'::regclass AND relname ~ '\\d{8}$'
              AND to_date(right(relname, 8), 'YYYYMMDD') > now()::date LOOP
            EXECUTE format('DROP TABLE %s', one);
        END LOOP; END $$";
    servers.execute(days).await?;
    let report = servers.doctor(&[]).await?;
    report.has_problems(&and("cluster/history"), "tables for 0 days to come")?;
    servers.must(&["migrate"]).await?;

    // A machine whose clock is wrong.
    let clocks = Clocks::new(servers.folder.path().join("clocks"))?;
    let env = clocks.variables("doctor")?;
    clocks.set("doctor", 30)?;
    let report = Report::of(servers.run(&["doctor", "--json"], &env).await?)?;
    report.says("database/clock", "this machine and PostgreSQL differ by ")?;
    ensure!(
        report
            .in_state("problem")
            .contains(&"database/clock".to_owned()),
        "{:#}",
        report.shown
    );

    few_rights(&servers).await
}

/// What a login may not see is skipped, and no fault.
async fn few_rights(servers: &Servers) -> anyhow::Result<()> {
    let name = servers.database.name();
    let roles = format!("r{}_", &name[name.len() - 12..]);
    servers.must(&["migrate", "--grants", &roles]).await?;
    let worker = format!(
        "CREATE ROLE {roles}w LOGIN PASSWORD 'it' IN ROLE \"{roles}worker\", \"{roles}pool_default\""
    );
    servers.execute(&worker).await?;
    let mut url = Url::parse(servers.database.url())?;
    url.set_username(&format!("{roles}w"))
        .ok()
        .context("a URL with a user")?;
    url.set_password(Some("it"))
        .ok()
        .context("a URL with a password")?;
    let setting = format!("database.url={url}");
    let report = servers
        .doctor(&["--role", "worker", "--set", &setting])
        .await?;
    report.says("database/login", "owns nothing")?;
    let skipped = report.in_state("skipped");
    ensure!(
        skipped.contains(&"cluster/queues".to_owned()),
        "{:#}",
        report.shown
    );
    for problem in report.in_state("problem") {
        ensure!(
            NOTHING_RUNS.contains(&problem.as_str()),
            "{problem}: {:#}",
            report.shown
        );
    }
    let all = format!("CREATE ROLE {roles}a LOGIN PASSWORD 'it' IN ROLE \"{roles}api\"");
    servers.execute(&all).await?;
    let mut whole = url.clone();
    let named = whole.set_username(&format!("{roles}a"));
    named.ok().context("a URL with a user")?;
    let report = servers.with("database.url", whole.as_str()).await?;
    report.has_problems(&NOTHING_RUNS, "")?;
    let skipped = report.in_state("skipped");
    let unseen = |it: &String| it.starts_with("cluster/") || it.starts_with("database/");
    ensure!(
        !skipped
            .iter()
            .any(|it| unseen(it) && it != "cluster/meeting place"),
        "{skipped:?}"
    );

    url.set_password(Some("wrong"))
        .ok()
        .context("a URL with a password")?;
    let report = servers.with("database.url", url.as_str()).await?;
    report.says("database/reachable", "password")?;
    ensure!(
        !report.shown.to_string().contains("wrong"),
        "it tells passwords"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_broker_that_is_not_well() -> anyhow::Result<()> {
    let servers = Servers::create().await?;
    servers.must(&["migrate"]).await?;
    servers.must(&["topology", "apply"]).await?;
    let report = servers.doctor(&[]).await?;
    report.has_problems(&NOTHING_RUNS, "nobody reads")?;
    report.says("broker/mark", "this system's")?;
    report.says("broker/sending", "it takes a message")?;

    let connection =
        Connection::connect(servers.broker.url(), ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let name = format!("{}attune.completed", servers.broker.prefix());
    channel
        .queue_delete(name.as_str().into(), QueueDeleteOptions::default())
        .await?;
    let report = servers.doctor(&[]).await?;
    report.has_problems(&and("broker/queues"), "missing: ")?;
    report.says("broker/queues", "attune.completed")?;
    // It was not made by looking.
    servers
        .doctor(&[])
        .await?
        .says("broker/queues", "missing: ")?;
    let mut other = FieldTable::default();
    other.insert(
        "x-queue-type".into(),
        AMQPValue::LongString("classic".into()),
    );
    let options = QueueDeclareOptions {
        durable: true,
        ..Default::default()
    };
    channel
        .queue_declare(name.as_str().into(), options, other)
        .await?;
    let report = servers.doctor(&[]).await?;
    report.has_problems(&and("broker/queues"), "other arguments")?;
    let report = servers.with("broker.topology", "passive").await?;
    report.says("broker/queues", "may not compare")?;
    let another = servers.with("cluster.partitions", "3").await?;
    another.says("broker/queues", "attune.partition.02.commands")?;
    // A second system would be made where somebody has only misspelt the first.
    let another = servers.with("broker.prefix", "misspelt.").await?;
    for check in ["broker/exchanges", "broker/queues"] {
        another.says(check, "broker.prefix is `misspelt.`")?;
        another.says(check, "look first whether broker.prefix")?;
    }

    let mut wrong = Url::parse(servers.broker.url())?;
    wrong
        .set_password(Some("hunter2"))
        .ok()
        .context("a URL with a password")?;
    let report = servers.with("broker.url", wrong.as_str()).await?;
    report.says("broker/reachable", "does not accept the user")?;
    ensure!(
        report.code == 2 && !report.shown.to_string().contains("hunter2"),
        "{}",
        report.code
    );
    Ok(())
}

/// A server that hangs is told as that, and holds up nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_servers_that_hang() -> anyhow::Result<()> {
    let servers = Servers::create().await?;
    servers.must(&["migrate"]).await?;
    servers.must(&["topology", "apply"]).await?;
    servers.to_database.set(Way::HalfOpen);
    servers.to_broker.set(Way::HalfOpen);
    let began = Instant::now();
    let report = servers.doctor(&[]).await?;
    ensure!(began.elapsed() < END, "it took {:?}", began.elapsed());
    report.has_problems(
        &["database/reachable", "broker/reachable"],
        "does not answer within 5 s",
    )?;
    report.says("cluster/everything", "cannot be read")?;
    servers.to_database.cut();
    servers.to_broker.restore();
    let report = servers.doctor(&[]).await?;
    report.says("database/reachable", "start the server")?;
    report.says("broker/queues", "are there")
}

/// Settings and files of a process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_settings_and_certificates_that_are_not_well() -> anyhow::Result<()> {
    let servers = Servers::create().await?;
    servers.must(&["migrate"]).await?;
    servers.must(&["topology", "apply"]).await?;
    let report = servers.with("worker.slotz", "1").await?;
    report.has_problems(&["configuration/settings"], "worker.slots")?;

    let file = servers.folder.path().join("attune.yaml");
    std::fs::write(&file, "worker: {slots: 3}\n")?;
    let with_mode = async |mode| {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode))?;
        let config = file.display().to_string();
        servers.doctor(&["--config", &config]).await
    };
    with_mode(0o600).await?.has_problems(&NOTHING_RUNS, "")?;
    let report = with_mode(0o666).await?;
    report.has_problems(&and("configuration/files"), "chmod go-w")?;

    let (good, other) = (Authority::new("good"), Authority::new("other"));
    let folder = |name: &str| -> anyhow::Result<_> {
        let folder = servers.folder.path().join(name);
        std::fs::create_dir(&folder)?;
        Ok(folder)
    };
    let (expired_folder, good_folder) = (folder("expired")?, folder("good")?);
    let expired = good.expired_server(&["localhost"]).write(&expired_folder);
    let well = good.server(&["localhost"]).write(&good_folder);
    let with_tls = async |cert: &Path, key: &Path| {
        let (cert, key) = (
            format!("api.tls.cert_file={}", cert.display()),
            format!("api.tls.key_file={}", key.display()),
        );
        servers
            .doctor(&["--role", "api", "--set", &cert, "--set", &key])
            .await
    };
    let report = with_tls(&expired.0, &expired.1).await?;
    report.has_problems(&and("certificates/api.tls"), "is over")?;
    let report = with_tls(&well.0, &expired.1).await?;
    report.says(
        "certificates/api.tls",
        "not the key of the first certificate",
    )?;
    let report = with_tls(&well.0, &well.1).await?;
    report.has_problems(&NOTHING_RUNS, "")?;
    let ca = servers.folder.path().join("ca.pem");
    std::fs::write(&ca, other.pem)?;
    let ca = format!("broker.tls.ca_file={}", ca.display());
    let encrypted = servers.broker.url().replace("amqp://", "amqps://");
    let encrypted = format!("broker.url={encrypted}");
    let report = servers.doctor(&["--set", &ca, "--set", &encrypted]).await?;
    report.says("certificates/broker.tls", "is good for")
}

/// The collector, the secrets of a worker, and the chain of the audit log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_what_else_is_not_well() -> anyhow::Result<()> {
    let servers = Servers::create().await?;
    servers.must(&["migrate"]).await?;
    servers.must(&["topology", "apply"]).await?;
    let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let nobody = servers
        .with("otlp.endpoint", &format!("http://{free}"))
        .await?;
    nobody.says("collector/metrics", "cannot be reached")?;
    ensure!(nobody.in_state("warning") == ["collector/metrics"]);
    let collector = Collector::start()?;
    let endpoint = format!("otlp.endpoint={}", collector.endpoint);
    let both = ["--set", &endpoint, "--set", "otlp.traces=true"];
    let report = servers.doctor(&both).await?;
    report.has_problems(&NOTHING_RUNS, "")?;
    report.says("collector/metrics", "takes them")?;
    report.says("collector/traces", "takes them")?;
    let sent: Vec<_> = collector.taken.try_iter().collect();
    ensure!(sent.len() == 2 && sent.iter().all(|(_, body)| body.is_empty()));

    // Not in memory, where modes say nothing.
    let own = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let folder = own.path().join("secrets");
    let of_worker = async || {
        let dir = format!("worker.secrets_dir={}", folder.display());
        servers.doctor(&["--role", "worker", "--set", &dir]).await
    };
    let report = of_worker().await?;
    report.has_problems(&and("host/secrets_dir"), "there is no such folder")?;
    std::fs::create_dir(&folder)?;
    let mode =
        |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    mode(&folder, 0o700)?;
    std::fs::write(folder.join("token"), "x\n")?;
    mode(&folder.join("token"), 0o644)?;
    let report = of_worker().await?;
    report.has_problems(&and("host/secrets"), "`token`: other accounts may")?;
    mode(&folder.join("token"), 0o600)?;
    let report = of_worker().await?;
    report.has_problems(&NOTHING_RUNS, "")?;
    report.says("host/secrets_dir", "secrets: 1")?;
    mode(&folder, 0o757)?;
    let report = of_worker().await?;
    report.has_problems(&and("host/secrets_dir"), "everybody may write")?;

    let entry = "INSERT INTO attune.audit_log (who, what, target, request_id)
        SELECT 'ann', 'test', n::text, gen_random_uuid() FROM generate_series(1, 2500) AS n";
    servers.execute(entry).await?;
    let report = servers.doctor(&[]).await?;
    report.has_problems(&NOTHING_RUNS, "")?;
    report.says("cluster/audit chain", "as they were written")?;
    let change = "SET session_replication_role = replica;
        UPDATE attune.audit_log SET who = 'bob' WHERE target = '2001'";
    servers.execute(change).await?;
    let report = servers.doctor(&[]).await?;
    report.has_problems(&and("cluster/audit chain"), "its entry was changed")
}
