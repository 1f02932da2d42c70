//! Each part of a cluster has a user of the broker and a login of the database, with the rights that the program
//! prints and grants. With those it runs, and what it must not do is refused.

use anyhow::{Context as _, ensure};
use attune_testkit::{Gate, System, Wiring, wait_for, within};
use futures_util::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::stranger::envelope;
use crate::support::{limited, noop, run, setup};

const REF: &str = "it.identities";

/// A connection to the broker as a part of the system.
struct Client {
    connection: Connection,
    user: String,
}

impl Client {
    async fn of(system: &System, part: &str) -> anyhow::Result<Self> {
        let url = system.broker_of(part)?;
        let connecting = Connection::connect(url, ConnectionProperties::default());
        Ok(Self {
            connection: within("a connection", connecting).await??,
            user: system.user_of(part),
        })
    }

    /// A channel of its own: a refusal closes it.
    async fn channel(&self) -> anyhow::Result<Channel> {
        let channel = self.connection.create_channel().await?;
        channel
            .confirm_select(ConfirmSelectOptions::default())
            .await?;
        Ok(channel)
    }

    /// Publishes as this user, and waits for what the broker says.
    async fn says(&self, exchange: &str, key: &str, body: Vec<u8>) -> anyhow::Result<()> {
        let own = BasicProperties::default().with_user_id(self.user.as_str().into());
        self.says_as(own, exchange, key, body).await
    }

    async fn says_as(
        &self,
        properties: BasicProperties,
        exchange: &str,
        key: &str,
        body: Vec<u8>,
    ) -> anyhow::Result<()> {
        let channel = self.channel().await?;
        let options = BasicPublishOptions::default();
        let (exchange, key) = (exchange.into(), key.into());
        let publishing = async {
            let sent = channel.basic_publish(exchange, key, options, &body, properties);
            sent.await?.await
        };
        within("a confirm", publishing).await??;
        Ok(())
    }

    /// Consumes from a queue of somebody else.
    async fn reads(&self, queue: &str) -> anyhow::Result<()> {
        let channel = self.channel().await?;
        let options = BasicConsumeOptions::default();
        let consuming =
            channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
        within("an answer", consuming).await??;
        Ok(())
    }

    /// Declares a queue and binds it.
    async fn hears(&self, queue: &str, exchange: &str, key: &str) -> anyhow::Result<()> {
        let channel = self.channel().await?;
        let options = QueueDeclareOptions {
            exclusive: true,
            auto_delete: true,
            ..QueueDeclareOptions::default()
        };
        let arguments = FieldTable::default();
        let declaring = channel.queue_declare(queue.into(), options, arguments.clone());
        within("an answer", declaring).await??;
        let options = QueueBindOptions::default();
        let (queue, exchange, key) = (queue.into(), exchange.into(), key.into());
        let binding = channel.queue_bind(queue, exchange, key, options, arguments);
        within("an answer", binding).await??;
        Ok(())
    }
}

fn refused(what: &str, outcome: anyhow::Result<()>) -> anyhow::Result<()> {
    let Err(error) = outcome else {
        anyhow::bail!("it may {what}");
    };
    let said = format!("{error:#}");
    ensure!(said.contains("ACCESS_REFUSED"), "{what}: {said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_every_part_runs_with_its_own_user_and_login() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster).accounts(), runs_with_its_own).await
}

async fn runs_with_its_own(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    api.apply(&limited(REF, &noop(), 2)).await?;
    let mut submitted = Vec::new();
    for _ in 0..5 {
        submitted.push(api.submit(REF, json!({})).await?.id);
    }
    for id in submitted {
        api.until(id, "succeeded").await?;
    }
    // A client is recorded as who it is, and names nobody else.
    let shop = Client::of(system, "client-shop").await?;
    let asks = |payload: Value| envelope("enforcement.created", 1, &payload);
    let fires = |body| shop.says("attune.executions", "enforcement.created", body);
    fires(asks(json!({"action_ref": REF, "labels": {"by": "shop"}}))).await?;
    fires(asks(json!({"action_ref": REF, "requested_by": "alice"}))).await?;
    let path = format!("/api/v1/executions?user={}", shop.user);
    let ended = wait_for("the client's execution", async || {
        let found = api.get(&path).await?.expect(200)?;
        let found = found["executions"].as_array().context("no list")?.clone();
        ensure!(
            found.len() == 1 && found[0]["status"] == "succeeded",
            "{found:?}"
        );
        Ok(found)
    });
    ended.await?;
    let letter = "it names `alice`";
    until_letter(system, letter).await?;
    let letters = api.get("/api/v1/dead-letters").await?.expect(200)?;
    ensure!(
        letters["dead_letters"][0]["sender"] == *shop.user,
        "{letters}"
    );
    let named = api
        .get("/api/v1/executions?user=alice")
        .await?
        .expect(200)?;
    ensure!(named["executions"] == json!([]), "{named}");
    ensure!(
        system
            .metric("executor_completions_forbidden_total")
            .await?
            == 0.0
    );
    Ok(())
}

/// Waits for a dead letter with this in its reason.
async fn until_letter(system: &System, said: &str) -> anyhow::Result<()> {
    wait_for(said, async || {
        let letters = system.api.get("/api/v1/dead-letters").await?.expect(200)?;
        ensure!(letters.to_string().contains(said), "{letters}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_what_a_part_must_not_do_is_refused() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster).accounts(), must_not).await
}

async fn must_not(system: &System) -> anyhow::Result<()> {
    let worker = Client::of(system, "attune-worker-gpu").await?;
    let (lives, executions) = ("attune.lives", "attune.executions");
    let any = |name: &str| format!("{name}.{}.{}", Uuid::now_v7(), Uuid::now_v7());
    let other = format!("default.{}", Uuid::now_v7());
    // Grants are forged by nobody but executors.
    for part in [
        "attune-worker-gpu",
        "client-shop",
        "attune-listener",
        "attune-stats",
        "attune-api",
    ] {
        let client = Client::of(system, part).await?;
        let says = client.says(lives, &other, b"{}".to_vec()).await;
        refused(&format!("grant as {part}"), says)?;
        let says = client.says("", "attune.completed", b"{}".to_vec()).await;
        refused(&format!("write to any queue as {part}"), says)?;
    }
    for key in [
        "partition.00.control",
        "partition.00.commands",
        "partition.00.calls",
        "enforcement.created",
    ] {
        refused(key, worker.says(executions, key, b"{}".to_vec()).await)?;
    }
    for queue in [
        "attune.completed",
        "attune.enforcements",
        "attune.partition.00.commands",
        "attune.dead-letters",
    ] {
        refused(queue, worker.reads(queue).await)?;
    }
    let own = || any("attune.worker.gpu");
    for key in [&other, "#", "*.*", "gpu.*"] {
        refused(key, worker.hears(&own(), lives, key).await)?;
    }
    refused("hear of all", worker.hears(&own(), executions, "#").await)?;
    refused(
        "be another's",
        worker
            .hears(&any("attune.worker.default"), lives, &other)
            .await,
    )?;
    let mine = format!("gpu.{}", Uuid::now_v7());
    worker
        .hears(&own(), lives, &mine)
        .await
        .context("its own it may hear")?;

    let shop = Client::of(system, "client-shop").await?;
    for key in [
        "execution.completed",
        "execution.completed.kept",
        "partition.00.commands",
        "worker.hello",
    ] {
        refused(key, shop.says(executions, key, b"{}".to_vec()).await)?;
    }
    let says = shop
        .says(
            "attune.reports",
            &Uuid::now_v7().to_string(),
            b"{}".to_vec(),
        )
        .await;
    refused("report", says)?;
    refused(
        "hear the API's answers",
        shop.reads("attune.reply.other").await,
    )?;
    forged_ends(system, &worker).await?;
    other_keys_lead_to_no_owner(system, &worker).await?;
    answers_go_nowhere_else(system).await
}

/// Brokers before RabbitMQ 4 look at the key of a message alone, and not at those in its headers: the owner does
/// not take what comes that way.
async fn other_keys_lead_to_no_owner(system: &System, worker: &Client) -> anyhow::Result<()> {
    let mut headers = FieldTable::default();
    let key = AMQPValue::LongString("partition.00.control".into());
    let keys = lapin::types::FieldArray::from(vec![key]);
    headers.insert("CC".into(), lapin::types::AMQPValue::FieldArray(keys));
    let named = BasicProperties::default()
        .with_user_id(worker.user.as_str().into())
        .with_headers(headers);
    let end = envelope("execution.completed", 1, &json!({}));
    match worker
        .says_as(named, "attune.executions", "execution.completed", end)
        .await
    {
        Ok(()) => until_letter(system, "none of broker.parts").await,
        newer => refused("reach an owner by another key", newer),
    }
}

/// An end that somebody else reports than whoever runs it changes nothing, whatever it says.
async fn forged_ends(system: &System, other: &Client) -> anyhow::Result<()> {
    let api = &system.api;
    let mut gate = Gate::open().await?;
    api.apply(&limited("it.forged", &gate.run(), 1)).await?;
    let id = api.submit("it.forged", json!({})).await?.id;
    let inside = gate.next().await?;
    let running = api.until(id, "running").await?;
    let second = api.submit("it.forged", json!({})).await?.id;
    let end = envelope(
        "execution.completed",
        1,
        &json!({
            "execution_id": id, "attempt": inside.attempt, "action_id": running["action_id"].as_i64().unwrap_or(1),
            "status": "succeeded", "worker": running["worker"], "result": {"forged": true},
            "broker_user": system.user_of("attune-worker-default"),
        }),
    );
    // The broker does not let it speak as another.
    let as_another =
        BasicProperties::default().with_user_id(system.user_of("attune-worker-default").into());
    let key = "execution.completed";
    let said = other
        .says_as(as_another, "attune.executions", key, end.clone())
        .await;
    let said = format!("{:#}", said.err().context("it speaks as another")?);
    ensure!(said.contains("PRECONDITION_FAILED"), "{said}");
    // What names nobody is a dead letter.
    let nobody = BasicProperties::default();
    other
        .says_as(nobody, "attune.executions", key, end.clone())
        .await?;
    until_letter(system, "broker.require_user_id").await?;
    // And as itself it is not who runs it.
    for key in ["execution.completed", "execution.completed.kept"] {
        other.says("attune.executions", key, end.clone()).await?;
    }
    wait_for("both to be counted", async || {
        let many = system
            .metric("executor_completions_forbidden_total")
            .await?;
        ensure!(many == 2.0, "{many} are counted");
        Ok(())
    })
    .await?;
    ensure!(api.execution(id).await?["status"] == "running");
    ensure!(
        api.execution(second).await?["status"] == "queued",
        "the slot is taken"
    );
    inside.leave(0).await?;
    let ended = api.until(id, "succeeded").await?;
    ensure!(ended["result"]["forged"] != true, "{ended}");
    gate.next().await?.leave(0).await?;
    api.until(second, "succeeded").await?;
    Ok(())
}

/// Whoever asks for answers where none may go is not answered, and what it asks for is done.
async fn answers_go_nowhere_else(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    api.apply(&limited("it.answers", &noop(), 1)).await?;
    let shop = Client::of(system, "client-shop").await?;
    for address in [
        "attune.completed",
        "attune.partition.00.commands",
        "somebody",
    ] {
        let asks = BasicProperties::default()
            .with_user_id(shop.user.as_str().into())
            .with_reply_to(address.into());
        let body = envelope(
            "enforcement.created",
            1,
            &json!({"action_ref": "it.answers"}),
        );
        shop.says_as(asks, "attune.executions", "enforcement.created", body)
            .await?;
    }
    wait_for("three executions", async || {
        let ended = api.until_idle("it.answers").await?;
        ensure!(ended.len() == 3, "{ended:?}");
        Ok(())
    })
    .await?;
    let many = system.metric("executor_answers_refused_total").await?;
    ensure!(many == 3.0, "{many} are counted");
    // Where it may be answered it is.
    let queue = format!("attune.reply.shop.{}", Uuid::now_v7());
    let channel = shop.channel().await?;
    let options = QueueDeclareOptions {
        exclusive: true,
        auto_delete: true,
        ..QueueDeclareOptions::default()
    };
    channel
        .queue_declare(queue.as_str().into(), options, FieldTable::default())
        .await?;
    let options = BasicConsumeOptions {
        no_ack: true,
        ..BasicConsumeOptions::default()
    };
    let mut answers = channel
        .basic_consume(
            queue.as_str().into(),
            "".into(),
            options,
            FieldTable::default(),
        )
        .await?;
    let asks = BasicProperties::default()
        .with_user_id(shop.user.as_str().into())
        .with_reply_to(queue.as_str().into());
    let body = envelope(
        "enforcement.created",
        1,
        &json!({"action_ref": "it.answers"}),
    );
    shop.says_as(asks, "attune.executions", "enforcement.created", body)
        .await?;
    let answer = within("an answer", answers.next())
        .await?
        .context("no answer")??;
    let answer = String::from_utf8_lossy(&answer.data).into_owned();
    ensure!(answer.contains("accepted"), "{answer}");
    // What its queue gives up still says that it comes from us: owners do not take it.
    let queue = format!("attune.reply.shop.{}", Uuid::now_v7());
    let mut arguments = FieldTable::default();
    for (name, value) in [
        ("x-dead-letter-exchange", "attune.executions"),
        ("x-dead-letter-routing-key", "partition.00.commands"),
    ] {
        arguments.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(0));
    let options = QueueDeclareOptions::default();
    channel
        .queue_declare(queue.as_str().into(), options, arguments)
        .await?;
    let asks = BasicProperties::default()
        .with_user_id(shop.user.as_str().into())
        .with_reply_to(queue.as_str().into());
    let body = json!({"action_ref": "it.answers"});
    let body = envelope("enforcement.created", 1, &body);
    shop.says_as(asks, "attune.executions", "enforcement.created", body)
        .await?;
    until_letter(system, &format!("from the queue `{queue}`")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_what_a_login_must_not_do_in_the_database_is_refused() -> anyhow::Result<()> {
    run(setup(Wiring::Cluster).accounts(), must_not_in_the_database).await
}

async fn must_not_in_the_database(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    api.apply(&limited(REF, &noop(), 1)).await?;
    let id = api.submit(REF, json!({"secret": "of others"})).await?.id;
    api.until(id, "succeeded").await?;
    let lease = "INSERT INTO attune.worker_lease (worker, name, pool, slots, expires_at, renewed_at, draining)
                 VALUES (gen_random_uuid(), 'w', 'POOL', 1, now() + interval '1 minute', now(), false)";
    let (default, gpu) = (
        lease.replace("POOL", "default"),
        lease.replace("POOL", "gpu"),
    );
    for (part, statement) in [
        (
            "attune-worker-gpu",
            "SELECT parameters FROM attune.execution_active",
        ),
        (
            "attune-worker-gpu",
            "SELECT parameters FROM attune.execution_history",
        ),
        ("attune-worker-gpu", "SELECT * FROM attune.execution"),
        ("attune-worker-gpu", "SELECT * FROM attune.action"),
        ("attune-worker-gpu", "UPDATE attune.action SET spec = '{}'"),
        (
            "attune-worker-gpu",
            "UPDATE attune.execution_active SET status = 'queued'",
        ),
        ("attune-worker-gpu", "DELETE FROM attune.worker_lease"),
        (
            "attune-worker-gpu",
            "DROP TRIGGER audit_log_is_append_only ON attune.audit_log",
        ),
        (
            "attune-worker-gpu",
            "INSERT INTO attune.audit_log (at) VALUES (now())",
        ),
        (
            "attune-worker-gpu",
            "SELECT attune.drop_day('request', now())",
        ),
        ("attune-worker-gpu", "CREATE TABLE attune.own (id integer)"),
        ("attune-worker-gpu", &default),
        ("attune-listener", "SELECT * FROM attune.execution_active"),
        (
            "attune-stats",
            "SELECT parameters FROM attune.execution_active",
        ),
        ("attune-stats", "DELETE FROM attune.audit_log"),
        (
            "attune-stats",
            "UPDATE attune.audit_retention SET days = 31",
        ),
        ("attune-executor", "UPDATE attune.action SET spec = '{}'"),
        ("attune-executor", "DELETE FROM attune.execution_history"),
        (
            "attune-executor",
            "UPDATE attune.audit_log SET who = 'somebody'",
        ),
        (
            "attune-api",
            "UPDATE attune.execution_active SET status = 'queued'",
        ),
        ("attune-api", "DELETE FROM attune.audit_log"),
        ("attune-api", "TRUNCATE attune.audit_log"),
        (
            "attune-api",
            "ALTER TABLE attune.audit_log DISABLE TRIGGER ALL",
        ),
        (
            "attune-monitor",
            "SELECT parameters FROM attune.execution_active",
        ),
        ("attune-monitor", "SELECT spec FROM attune.action"),
    ] {
        let mut login = system.database_as(part).await?;
        let outcome = sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned()))
            .execute(&mut login)
            .await;
        let error = outcome
            .err()
            .with_context(|| format!("{part} may {statement}"))?;
        let code = error
            .as_database_error()
            .and_then(|error| error.code().map(|it| it.into_owned()));
        ensure!(
            code.as_deref() == Some("42501"),
            "{part}: {statement}: {error}"
        );
    }
    // A worker sees and ends the leases of its own login alone.
    let mut login = system.database_as("attune-worker-gpu").await?;
    let ended = sqlx::query("UPDATE attune.worker_lease SET ended = true")
        .execute(&mut login)
        .await?;
    ensure!(ended.rows_affected() == 0, "it ends the leases of others");
    sqlx::raw_sql(sqlx::AssertSqlSafe(gpu))
        .execute(&mut login)
        .await?;
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM attune.worker_lease")
        .fetch_one(&mut login)
        .await?;
    ensure!(seen == 1, "it sees {seen} leases");
    // What is old goes, and there is room for the days to come.
    let mut login = system.database_as("attune-stats").await?;
    for upkeep in [
        "SELECT attune.make_days('request', 9)",
        "SELECT attune.make_days('execution_history', 9)",
        "SELECT attune.drop_day('request', now() - interval '400 days')",
        "SELECT attune.prune_audit(now() - interval '400 days', 10)",
        "DELETE FROM attune.execution_history_default WHERE finished_at < now() - interval '400 days'",
    ] {
        let outcome = sqlx::query(upkeep).execute(&mut login).await;
        outcome.with_context(|| format!("the keeper must be allowed to {upkeep}"))?;
    }
    // Who watches sees figures.
    let mut login = system.database_as("attune-monitor").await?;
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM attune.queue_stats")
        .fetch_one(&mut login)
        .await?;
    ensure!(seen >= 1, "there are figures");
    Ok(())
}
