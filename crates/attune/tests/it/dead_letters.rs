//! Dead letters are looked at and put back: nothing that was sent is lost, nothing runs twice.

use anyhow::{Context as _, ensure};
use attune_core::RequestId;
use attune_testkit::{System, Wiring, wait_for};
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _};
use uuid::Uuid;

use crate::stranger::envelope;
use crate::support::{ids, limited, noop, number, on_both_wirings};

on_both_wirings! {
    put_back => embedded_dead_letters, cluster_dead_letters;
}

const REF: &str = "it.late";

pub(crate) async fn attune(system: &System, code: i32, args: &[&str]) -> anyhow::Result<String> {
    let (found, stdout, stderr) = system.client(args).await?;
    ensure!(
        found == code,
        "{args:?} ended with {found}: {stdout}{stderr}"
    );
    Ok(stdout + &stderr)
}

pub(crate) async fn list(system: &System, source: &str) -> anyhow::Result<Vec<Value>> {
    let line = ["dead-letters", "list", "--source", source, "--json"];
    let list: Value = serde_json::from_str(&attune(system, 0, &line).await?)?;
    let letters = list["dead_letters"].as_array().context("no letters")?;
    Ok(letters.clone())
}

/// Puts a message into the store as the collector would.
pub(crate) async fn keep(system: &System, source: &str, body: &[u8]) -> anyhow::Result<()> {
    let statement = |schema: &str| {
        let insert = format!(
            "INSERT INTO {schema}dead_letter (message_id, reason, source, body, bytes, received_at)
             VALUES ($1, 'as the test wants', $2, $3, $4, CURRENT_TIMESTAMP)"
        );
        AssertSqlSafe(insert)
    };
    let bytes = i64::try_from(body.len())?;
    match system.wiring() {
        Wiring::Cluster => {
            let mut sql = system.database()?.connect().await?;
            sqlx::query(statement("attune."))
                .bind(Uuid::now_v7())
                .bind(source)
                .bind(body)
                .bind(bytes)
                .execute(&mut sql)
                .await?;
        }
        Wiring::Embedded => {
            let file = system.folder().join("data/attune.db");
            let options = SqliteConnectOptions::new().filename(file);
            let mut sql = SqliteConnection::connect_with(&options).await?;
            sqlx::query(statement(""))
                .bind(Uuid::now_v7().to_string())
                .bind(source)
                .bind(body)
                .bind(bytes)
                .execute(&mut sql)
                .await?;
            // As every time in that file is written.
            let times = "UPDATE dead_letter
                SET received_at = strftime('%Y-%m-%dT%H:%M:%f000Z', received_at)";
            sqlx::query(times).execute(&mut sql).await?;
            sql.close().await?;
        }
    }
    Ok(())
}

/// A firing for an action that did not exist goes back under its request id, once; what an earlier
/// release told its workers is refused, with the way out.
async fn put_back(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let request = RequestId::fresh();
    let firing = json!({"action_ref": REF, "request_id": request});
    let firing = envelope("enforcement.created", 1, &firing);
    keep(system, "enforcement.created", &firing).await?;
    let letters = list(system, "enforcement.created").await?;
    ensure!(letters.len() == 1, "{letters:?}");
    let letter = number(&letters[0], "id")?.to_string();
    let shown = attune(system, 0, &["dead-letters", "show", &letter]).await?;
    ensure!(shown.contains(REF), "{shown}");

    api.apply(&limited(REF, &noop(), 1)).await?;
    let requeue = [
        "dead-letters",
        "requeue",
        &letter,
        "--reason",
        "it exists",
        "--who",
        "ann",
    ];
    let words = wait_for("the letter to be put back", async || {
        // An owner that has just started declares its topics one after the other.
        attune(system, 0, &requeue).await
    })
    .await?;
    ensure!(words.contains("is put back"), "{words}");
    let again = attune(system, 2, &requeue).await?;
    ensure!(again.contains("ALREADY_REQUEUED"), "{again}");
    let executions = wait_for("the execution", async || {
        let executions = api.until_idle(REF).await?;
        ensure!(executions.len() == 1, "{executions:?}");
        Ok(executions)
    })
    .await?;
    ensure!(
        executions[0]["request_id"] == json!(request),
        "{executions:?}"
    );
    let old = ids(&executions)?[0];

    // What an earlier release told its workers is of no use to anybody.
    let dispatch = json!([{
        "execution_id": old, "attempt": 1, "action_id": executions[0]["action_id"],
        "action_ref": REF, "parameters": {}, "run": noop(), "timeout_seconds": 60,
    }]);
    for (source, payload) in [
        ("execution.requested.default", dispatch),
        (
            "execution.cancel",
            json!({"execution_id": old, "attempt": 1}),
        ),
    ] {
        let kind = source.trim_end_matches(".default");
        keep(system, source, &envelope(kind, 1, &payload)).await?;
        let letters = list(system, source).await?;
        let letter = number(&letters[0], "id")?.to_string();
        let words = attune(system, 2, &["dead-letters", "requeue", &letter]).await?;
        ensure!(
            words.contains("an earlier release") && words.contains("submitted again"),
            "{words}"
        );
        let letters = list(system, source).await?;
        ensure!(letters[0]["requeued_at"].is_null(), "{letters:?}");
    }
    let executions = api.until_idle(REF).await?;
    ensure!(ids(&executions)? == [old], "{executions:?}");

    let log = api.get("/api/v1/audit-log").await?.expect(200)?;
    let entries = log["entries"].as_array().context("no entries")?;
    let marks: Vec<&Value> = entries
        .iter()
        .filter(|entry| entry["what"] == "dead_letter.requeue")
        .collect();
    ensure!(marks.len() == 1, "{log}");
    ensure!(
        marks[0]["who"] == "ann" && marks[0]["reason"] == "it exists",
        "{log}"
    );
    Ok(())
}
