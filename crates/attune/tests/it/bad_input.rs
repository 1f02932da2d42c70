//! What clients must not send: refused with a reason, and nothing is stored.

use anyhow::{Context as _, ensure};
use attune_testkit::{Answer, System};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{limited, noop, on_both_wirings};

on_both_wirings! {
    refused => embedded_bad_input, cluster_bad_input;
}

const PATH: &str = "/api/v1/executions";
const REF: &str = "it.input";

/// A body that is wrong, the status and code that it is answered with, and a word of the reason.
struct Bad {
    body: String,
    status: u16,
    code: &'static str,
    said: &'static str,
}

fn bad(body: impl Into<String>, said: &'static str) -> Bad {
    Bad {
        body: body.into(),
        status: 422,
        code: "INVALID_INPUT",
        said,
    }
}

fn parameters(value: &str) -> String {
    format!(r#"{{"action_ref":"{REF}","parameters":{{"value":{value}}}}}"#)
}

fn bodies() -> Vec<Bad> {
    let nested =
        |levels: usize| parameters(&format!("{}{}", "[".repeat(levels), "]".repeat(levels)));
    let unknown = r#"{"action_ref":"it.nobody-knows"}"#;
    let large = parameters(&format!(r#""{}""#, "x".repeat(1024 * 1024)));
    vec![
        Bad {
            code: "UNKNOWN_ACTION",
            ..bad(unknown, "it.nobody-knows")
        },
        bad(r#"{"action_ref":"It Input"}"#, "action_ref"),
        bad(parameters(r#""a\u0000b""#), "parameters.value"),
        bad(
            format!(r#"{{"action_ref":"{REF}","group":"a\u0000"}}"#),
            "group",
        ),
        bad(nested(33), "32"),
        bad(parameters("1e400"), "parameters.value"),
        bad(
            format!(r#"{{"action_ref":"{REF}","timeout_seconds":0}}"#),
            "timeout_seconds",
        ),
        bad(
            format!(r#"{{"action_ref":"{REF}","timeout_seconds":-1}}"#),
            "timeout_seconds",
        ),
        bad(
            format!(r#"{{"action_ref":"{REF}","timeout_seconds":4294967296}}"#),
            "timeout_seconds",
        ),
        bad(
            format!(r#"{{"action_ref":"{REF}","parameters":[1]}}"#),
            "parameters",
        ),
        bad(
            format!(r#"{{"action_ref":"{REF}","paramters":{{}}}}"#),
            "paramters",
        ),
        bad(
            format!(r#"{{"action_ref":"{REF}","priority":"urgent"}}"#),
            "priority",
        ),
        Bad {
            status: 413,
            code: "TOO_LARGE",
            ..bad(large, "1048576")
        },
        Bad {
            status: 400,
            code: "MALFORMED_JSON",
            ..bad(r#"{"action_ref":"#, "JSON")
        },
    ]
}

async fn refused(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    api.apply(&limited(REF, &noop(), 1)).await?;
    for Bad {
        body,
        status,
        code,
        said,
    } in bodies()
    {
        let shown: String = body.chars().take(80).collect();
        let answer = api.send(Method::POST, PATH, &[], body.into_bytes()).await?;
        let error = answer
            .refused(status, code)
            .with_context(|| shown.clone())?;
        let text = error.to_string();
        ensure!(
            text.contains(said),
            "{shown}: {said:?} is missing in {text}"
        );
    }
    bad_actions(system).await?;
    bad_places(system).await?;
    let stored = api.get(PATH).await?.expect(200)?;
    ensure!(
        stored["executions"] == json!([]),
        "something was stored: {stored}"
    );
    // What is just within the bounds is fine.
    let deepest = format!("{}{}", "[".repeat(31), "]".repeat(31));
    let answer = api
        .send(Method::POST, PATH, &[], parameters(&deepest).into_bytes())
        .await?;
    let id = answer.expect(201)?["id"].as_i64().context("no id")?;
    api.until(id, "succeeded").await?;
    Ok(())
}

/// Actions that cannot be applied leave those that exist as they are.
async fn bad_actions(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    let put = async |spec: &Value| -> anyhow::Result<Answer> {
        let path = format!("/api/v1/actions/{REF}");
        api.send(Method::PUT, &path, &[], serde_json::to_vec(spec)?)
            .await
    };
    let before = api
        .get(&format!("/api/v1/actions/{REF}"))
        .await?
        .expect(200)?;
    let mut other_ref = limited("it.other", &noop(), 1);
    other_ref["description"] = json!("not the one of the path");
    for (spec, said) in [
        (limited(REF, &noop(), 0), "policy.concurrency.limit"),
        (limited(REF, &json!({"program": []}), 1), "run.program"),
        (limited(REF, &json!({"builtin": "dance"}), 1), "dance"),
        (other_ref, "it.other"),
        (json!({"ref": REF, "run": noop(), "limit": 3}), "limit"),
    ] {
        let error = put(&spec).await?.refused(422, "INVALID_INPUT")?;
        ensure!(
            error.to_string().contains(said),
            "{said:?} is missing in {error}"
        );
    }
    let after = api
        .get(&format!("/api/v1/actions/{REF}"))
        .await?
        .expect(200)?;
    ensure!(before == after, "{before} has become {after}");
    Ok(())
}

/// Paths and query strings that lead nowhere.
async fn bad_places(system: &System) -> anyhow::Result<()> {
    let api = &system.api;
    for (path, status, code) in [
        ("/api/v1/executions/0", 422, "INVALID_INPUT"),
        ("/api/v1/executions/x", 422, "INVALID_INPUT"),
        ("/api/v1/executions/1099511627776", 404, "UNKNOWN_EXECUTION"),
        ("/api/v1/executions?status=gone", 422, "INVALID_INPUT"),
        ("/api/v1/executions?cursor=x", 422, "INVALID_INPUT"),
        ("/api/v1/executions?state=queued", 422, "INVALID_INPUT"),
        ("/api/v1/actions/it.nobody-knows", 404, "UNKNOWN_ACTION"),
        (
            "/api/v1/actions/it.nobody-knows/queue-stats",
            404,
            "UNKNOWN_ACTION",
        ),
        ("/api/v1/nothing", 404, "NOT_FOUND"),
    ] {
        api.get(path)
            .await?
            .refused(status, code)
            .with_context(|| path.to_owned())?;
    }
    Ok(())
}
