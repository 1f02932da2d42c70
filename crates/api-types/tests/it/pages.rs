//! Pages that are made from the types, and pages that must say the same.
//!
//! `ATTUNE_TEST_WRITE_PAGES=1 cargo nextest run -p attune-api-types -E 'test(pages)'` writes what is made.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use attune_api_types::words::{ActionSpec, PolicyDocument};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

/// Between these stands what is made.
const BEGIN: &str = "<!-- made from the types; crates/api-types/tests/it/pages.rs -->\n";
const END: &str = "<!-- end -->\n";

fn page(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name)
}

/// Checks that a file is what is made, or writes it.
fn keep(name: &str, made: &str) -> anyhow::Result<()> {
    if std::env::var_os("ATTUNE_TEST_WRITE_PAGES").is_some() {
        return Ok(std::fs::write(page(name), made)?);
    }
    let found = std::fs::read_to_string(page(name)).unwrap_or_default();
    ensure!(
        found == made,
        "{name} is not what the types say; ATTUNE_TEST_WRITE_PAGES=1 writes it"
    );
    Ok(())
}

/// The JSON schema of a file, with the schemas that it names inside.
fn schema_of<T: ToSchema>(title: &str) -> anyhow::Result<Value> {
    let mut named = Vec::new();
    T::schemas(&mut named);
    let mut definitions = Map::new();
    for (name, schema) in named {
        definitions.insert(name, serde_json::to_value(schema)?);
    }
    let mut schema = serde_json::to_value(T::schema())?;
    let members = schema.as_object_mut().context("it is no object")?;
    members.insert(
        "$schema".to_owned(),
        json!("https://json-schema.org/draft/2020-12/schema"),
    );
    members.insert("title".to_owned(), json!(title));
    members.insert("$defs".to_owned(), Value::Object(definitions));
    let text = serde_json::to_string_pretty(&schema)?;
    Ok(serde_json::from_str(
        &text.replace("#/components/schemas/", "#/$defs/"),
    )?)
}

/// A schema without the reference that it may be, and with what stands beside the reference.
fn resolved(root: &Value, schema: &Value) -> Value {
    let target = schema["$ref"]
        .as_str()
        .or_else(|| schema["allOf"][0]["$ref"].as_str())
        .or_else(|| {
            let choices = schema["oneOf"].as_array()?;
            choices.iter().find_map(|choice| choice["$ref"].as_str())
        })
        .and_then(|path| root.pointer(path.trim_start_matches('#')));
    let mut found = target.unwrap_or(schema).clone();
    let items = found["items"]
        .is_object()
        .then(|| resolved(root, &found["items"]));
    if let (Some(members), Some(items)) = (found.as_object_mut(), items) {
        members.insert("items".to_owned(), items);
    }
    // What may be left out is a choice between the reference and nothing.
    let choices = schema["oneOf"].as_array().into_iter().flatten();
    let beside: Vec<&Value> = choices.filter(|it| it["$ref"].is_string()).collect();
    for name in ["description", "default"] {
        let own = schema.get(name);
        let own = own.or_else(|| beside.iter().find_map(|choice| choice.get(name)));
        if let (Some(members), Some(own)) = (found.as_object_mut(), own) {
            members.insert(name.to_owned(), own.clone());
        }
    }
    found
}

/// What a value may be, in words.
fn takes(schema: &Value) -> String {
    if let Some(words) = schema["enum"].as_array() {
        let words: Vec<String> = words
            .iter()
            .filter_map(Value::as_str)
            .map(|word| format!("`{word}`"))
            .collect();
        return words.join(", ");
    }
    let kind = match &schema["type"] {
        // Nothing is a value that leaves the field out.
        Value::Array(kinds) => kinds
            .iter()
            .filter_map(Value::as_str)
            .find(|kind| *kind != "null"),
        kind => kind.as_str(),
    };
    let mut words = match kind {
        Some("string") => "text".to_owned(),
        Some("integer") => "whole number".to_owned(),
        Some("array") if schema["items"]["enum"].is_array() => {
            format!("list of {}", takes(&schema["items"]))
        }
        Some("array") => format!("list of {}s", takes(&schema["items"])),
        Some("object") if schema["additionalProperties"].is_object() => {
            let of = &schema["additionalProperties"];
            match of["type"].as_str() {
                Some("integer") => "object of whole numbers".to_owned(),
                None => "object of texts, or of `{secret: NAME}`".to_owned(),
                _ => format!("object of {}s", takes(of)),
            }
        }
        Some(kind) => kind.to_owned(),
        None => "anything".to_owned(),
    };
    match (schema["minimum"].as_u64(), schema["maximum"].as_u64()) {
        (Some(min), Some(max)) => words.push_str(&format!(", {min} to {max}")),
        (Some(min), None) => words.push_str(&format!(" from {min}")),
        _ => {}
    }
    if let Some(bytes) = schema["maxLength"].as_u64() {
        words.push_str(&format!(", at most {bytes} bytes"));
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        words.push_str(&format!(", as in `{pattern}`"));
    }
    words
}

/// A row for each member of an object, and for those of the objects in it.
fn rows(root: &Value, schema: &Value, prefix: &str, table: &mut String) -> anyhow::Result<()> {
    let run = attune_core::Run::Builtin(attune_core::Builtin::Noop);
    let any = "any.action".parse().map_err(anyhow::Error::msg)?;
    let mut defaults = serde_json::to_value(attune_core::ActionSpec::new(any, run))?;
    // What every author writes has no default.
    defaults["run"].take();
    let required = |name: &str| {
        let names = schema["required"].as_array();
        names.is_some_and(|names| names.iter().any(|it| it == name))
    };
    let members = schema["properties"].as_object();
    let members = members.context("an object without members")?;
    let (first, others): (Vec<_>, Vec<_>) = members.iter().partition(|(name, _)| required(name));
    for (name, member) in first.into_iter().chain(others) {
        let member = resolved(root, member);
        let path = format!("{prefix}{name}");
        let meaning = member["description"]
            .as_str()
            .unwrap_or_default()
            .replace('\n', " ");
        // The core knows some that the schema leaves out.
        let core = defaults.pointer(&format!("/{}", path.replace('.', "/")));
        let default = member.get("default").or(core).unwrap_or(&Value::Null);
        let default = match (default, required(name)) {
            (_, true) => "required".to_owned(),
            (Value::Null | Value::Object(_), false) => "not set".to_owned(),
            (value, false) => format!(
                "`{}`",
                value.as_str().map_or(value.to_string(), str::to_owned)
            ),
        };
        if let Some(choices) = member["oneOf"].as_array() {
            writeln!(
                table,
                "| `{path}` | one of its members | {default} | {meaning} |"
            )?;
            for choice in choices {
                let mut choice = choice.clone();
                if let Some(members) = choice.as_object_mut() {
                    // One of several: none of them alone is required.
                    members.remove("required");
                    let texts = members.get("description").cloned();
                    let inner = members["properties"].as_object_mut();
                    for inner in inner.into_iter().flat_map(|it| it.values_mut()) {
                        if let (Some(inner), Some(text)) = (inner.as_object_mut(), &texts) {
                            inner.insert("description".to_owned(), text.clone());
                        }
                    }
                }
                rows(root, &choice, &format!("{path}."), table)?;
            }
        } else if member["properties"].is_object() {
            rows(root, &member, &format!("{path}."), table)?;
        } else {
            writeln!(
                table,
                "| `{path}` | {} | {default} | {meaning} |",
                takes(&member)
            )?;
        }
    }
    Ok(())
}

#[test]
fn the_action_page_and_its_schema_are_made_from_the_types() -> anyhow::Result<()> {
    let schema = schema_of::<ActionSpec>("An action of Attune")?;
    keep_schema("docs/action.schema.json", &schema)?;

    keep_table("docs/ACTIONS.md", &schema)
}

#[test]
fn the_policy_page_and_its_schema_are_made_from_the_types() -> anyhow::Result<()> {
    let mut schema = schema_of::<PolicyDocument>("A policy document of Attune")?;
    schema["allOf"] = by_scope();
    keep_schema("docs/policy.schema.json", &schema)?;
    // The policy of an action has a page of its own.
    schema["properties"]["policy"] = json!({"type": "object",
        "description": schema["properties"]["policy"]["description"]});
    keep_table("docs/POLICIES.md", &schema)
}

/// What a document of each scope has, and what it cannot have; the types know no more than all that there is.
fn by_scope() -> Value {
    let object = || json!({"type": "object"});
    let none = || json!({"type": "null"});
    let scopes = [
        (
            "global",
            json!(["action_defaults"]),
            json!({
                "target": false, "tier": false, "policy": none(), "action_defaults": object(),
            }),
        ),
        (
            "pack",
            json!(["target", "action_defaults"]),
            json!({
                "target": {"pattern": "^[a-z0-9_-]+$", "maxLength": 126},
                "tier": false, "policy": none(), "action_defaults": object(),
            }),
        ),
        (
            "action",
            json!(["target", "policy"]),
            json!({
                "target": {"pattern": r"^[a-z0-9_-]+(\.[a-z0-9_-]+)+$", "maxLength": 128},
                "tier": false, "policy": object(), "action_defaults": none(),
            }),
        ),
        (
            "user",
            json!(["target"]),
            json!({
                "action_defaults": none(),
                "policy": {
                    "additionalProperties": false,
                    "properties": {"priority": {
                        "type": "object",
                        "additionalProperties": false,
                        "properties": {"max": true},
                    }},
                },
            }),
        ),
    ];
    let scopes = scopes.map(|(scope, required, properties)| {
        json!({
            "if": {"properties": {"scope": {"const": scope}}},
            "then": {"required": required, "properties": properties},
        })
    });
    json!(scopes)
}

fn keep_schema(name: &str, schema: &Value) -> anyhow::Result<()> {
    let mut text = serde_json::to_string_pretty(schema)?;
    text.push('\n');
    keep(name, &text)
}

/// Checks that a page has a table of the fields of a schema, or writes it.
fn keep_table(name: &str, schema: &Value) -> anyhow::Result<()> {
    let mut table = "| field | takes | default | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    rows(schema, schema, "", &mut table)?;
    let found = std::fs::read_to_string(page(name))?;
    let (before, rest) = found.split_once(BEGIN).context("no begin")?;
    let (_, after) = rest.split_once(END).context("no end")?;
    keep(name, &format!("{before}{BEGIN}{table}{END}{after}"))
}

#[test]
fn three_pages_have_one_picture() -> anyhow::Result<()> {
    let picture = |name: &str| -> anyhow::Result<String> {
        let text = std::fs::read_to_string(page(name))?;
        let picture = text
            .split("```\n")
            .find(|block| block.starts_with("client ─"));
        Ok(picture
            .with_context(|| format!("no picture in {name}"))?
            .to_owned())
    };
    let first = picture("README.md")?;
    for name in ["docs/ARCHITECTURE.md", "docs/PROTOCOL.md"] {
        ensure!(
            picture(name)? == first,
            "{name} has another picture than README.md"
        );
    }
    Ok(())
}
