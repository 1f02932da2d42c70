//! The reference: what is served, what is committed, and what the page needs.

use std::collections::BTreeSet;
use std::path::Path;

use axum::http::header;
use serde_json::Value;

use crate::harness::Api;

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

/// With `ATTUNE_WRITE_REFERENCE` set the committed copy is written instead of compared.
#[tokio::test]
async fn the_committed_copy_is_what_is_served() {
    let served = Api::new().get("/api/v1/openapi.json").await;
    assert_eq!(served.status, 200);
    let text = serde_json::to_string_pretty(&served.body).unwrap() + "\n";
    if std::env::var_os("ATTUNE_WRITE_REFERENCE").is_some() {
        std::fs::write(COMMITTED, &text).unwrap();
    }
    let committed = std::fs::read_to_string(Path::new(COMMITTED)).unwrap_or_default();
    assert!(
        committed == text,
        "docs/openapi.json is not what is served; write it with \
         ATTUNE_WRITE_REFERENCE=1 cargo nextest run -p attune-api reference"
    );
}

#[tokio::test]
async fn the_document_is_whole() {
    let document = Api::new().get("/api/v1/openapi.json").await.body;
    assert_eq!(document["openapi"], "3.1.0");
    let mut named = BTreeSet::new();
    references(&document, &mut named);
    assert!(named.len() > 20, "{named:?}");
    for name in &named {
        let pointer = name.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{name} is not there");
    }
    let mut ids = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let place = format!("{method} {path}");
            let id = operation["operationId"].as_str().unwrap();
            assert!(ids.insert(id.to_owned()), "{id} is there twice");
            assert!(
                operation["summary"].is_string(),
                "{place} says not what it does"
            );
            let answers = operation["responses"].as_object().unwrap();
            for status in ["401", "403", "405", "429", "500", "503"] {
                assert!(answers.contains_key(status), "{place} {status}");
            }
            if operation.get("requestBody").is_some() {
                for status in ["400", "408", "413", "415", "422"] {
                    assert!(answers.contains_key(status), "{place} {status}");
                }
            }
        }
    }
    assert!(ids.len() >= 17, "{ids:?}");
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(name)) = members.get("$ref") {
                found.insert(name.clone());
            }
            members.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

#[tokio::test]
async fn the_page_needs_nothing_from_elsewhere() {
    let page = Api::new().get("/docs").await;
    assert_eq!(page.status, 200);
    assert!(page.header(header::CONTENT_TYPE).starts_with("text/html"));
    assert!(
        page.header(header::CONTENT_SECURITY_POLICY)
            .contains("connect-src 'self'")
    );
    let text = page.body.as_str().unwrap();
    for far in ["http://", "https://", "src=", "@import", "url("] {
        assert!(!text.contains(far), "{far}");
    }
    assert!(text.contains("/api/v1/openapi.json"));
}
