//! `docs/CONFIGURATION.md` says what the program does.

use attune_config::Loader;
use serde_json::Value;

use crate::{YamlFile, default_file_leaves, problem};

const DOCUMENTATION: &str = include_str!("../../../../docs/CONFIGURATION.md");

/// The bounds of the whole numbers, read from the documentation's table.
fn documented_bounds() -> Vec<(String, u64, u64)> {
    DOCUMENTATION
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            let key = cells.next()?.trim_end_matches('`').to_owned();
            let bounds = cells.nth(1)?.strip_prefix("a whole number from ")?;
            // Without a default it is no number in the default file.
            let bounds = Some(bounds).filter(|bounds| !bounds.ends_with(", or nothing"))?;
            let (min, rest) = bounds.split_once(" to ")?;
            Some((
                key,
                min.parse().ok()?,
                rest.split(' ').next()?.parse().ok()?,
            ))
        })
        .collect()
}

#[test]
fn the_bounds_fit_the_types_and_are_the_documented_ones() {
    let bounds = documented_bounds();
    let numbers = default_file_leaves()
        .into_values()
        .filter(Value::is_number)
        .count();
    assert_eq!(bounds.len(), numbers);
    for (key, min, max) in bounds {
        for value in [min, max] {
            // Some extremes do not fit other keys' defaults; what counts is that no other
            // problem is found, and that nothing panics.
            if let Err(error) = Loader::new()
                .flags([(key.as_str(), value.to_string())])
                .load()
            {
                let text = error.to_string();
                assert!(!text.contains("out of range"), "{key}={value}: {text}");
            }
        }
        let text = problem(Loader::new().flags([(key.as_str(), (max + 1).to_string())]));
        assert!(text.contains("out of range"), "{key}: {text}");
    }
}

#[test]
fn every_key_is_documented_with_its_default_and_what_it_takes() {
    let mut missing = Vec::new();
    for (key, value) in default_file_leaves() {
        let default = match &value {
            Value::Null => "not set".to_owned(),
            Value::String(text) if text.is_empty() => "empty".to_owned(),
            Value::String(text) => format!("`{text}`"),
            Value::Array(items) => {
                let names: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
                format!("`[{}]`", names.join(", "))
            }
            other => format!("`{other}`"),
        };
        // A list is no text, number, switch, choice, URL or folder: the message says what fits.
        let wrong = YamlFile::new(&nested(&key, "[[]]"));
        let text = problem(Loader::new().file(Some(wrong.path())));
        let expected = text.split("expected ").nth(1).unwrap();
        let row = format!("| `{key}` | {default} | {expected} | ");
        if !DOCUMENTATION.contains(&row) {
            missing.push(row);
        }
    }
    assert!(
        missing.is_empty(),
        "docs/CONFIGURATION.md lacks these rows:\n{}",
        missing.join("\n")
    );
}

/// YAML that sets one dotted key.
fn nested(key: &str, value: &str) -> String {
    let mut yaml = String::new();
    for (depth, part) in key.split('.').enumerate() {
        if depth > 0 {
            yaml.push('\n');
        }
        yaml.push_str(&"  ".repeat(depth));
        yaml.push_str(part);
        yaml.push(':');
    }
    format!("{yaml} {value}\n")
}
