//! Rules of the whole workspace that people forget, as checks.

#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which crates a crate may use; what is not named here may use nothing of the workspace.
/// Services depend on ports, never on adapters or on each other; only the binary sees all.
const MAY_USE: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("identity", &[]),
    ("messages", &["core"]),
    ("config", &["core"]),
    ("runtime", &["config", "core"]),
    ("store", &["identity", "core"]),
    ("store-conformance", &["store", "identity", "core"]),
    ("store-postgres", &["store", "identity", "core"]),
    ("store-sqlite", &["store", "identity", "core"]),
    ("bus", &["messages", "core"]),
    ("bus-conformance", &["bus", "core"]),
    ("commands", &["bus", "messages", "core"]),
    ("bus-rabbitmq", &["bus", "messages", "runtime", "core"]),
    ("dispatch", &["core"]),
    ("secrets", &["core"]),
    ("executor", &["dispatch", "secrets", "core"]),
    ("routing", &["messages", "core"]),
    ("routing-service", &["routing", "bus", "runtime", "core"]),
    (
        "executor-service",
        &[
            "executor",
            "dispatch",
            "routing",
            "routing-service",
            "secrets",
            "store",
            "bus",
            "messages",
            "runtime",
            "core",
            "record",
        ],
    ),
    (
        "completion-listener",
        &[
            "routing",
            "routing-service",
            "bus",
            "runtime",
            "core",
            "record",
        ],
    ),
    (
        "dead-letters",
        &["secrets", "store", "bus", "messages", "runtime", "core"],
    ),
    (
        "stats",
        &["store", "bus", "messages", "runtime", "core", "record"],
    ),
    (
        "worker",
        &[
            "dispatch", "secrets", "store", "bus", "messages", "runtime", "core", "record",
        ],
    ),
    ("api-types", &["identity", "core"]),
    ("cli", &["api-types", "identity", "core"]),
    (
        "api",
        &[
            "api-types",
            "commands",
            "identity",
            "secrets",
            "store",
            "bus",
            "messages",
            "runtime",
            "core",
            "record",
            "dead-letters",
        ],
    ),
    ("record", &["core"]),
    ("history", &["record", "core"]),
    (
        "bench",
        &[
            "bus", "commands", "messages", "store", "history", "record", "core",
        ],
    ),
    ("testkit", &["core", "history", "record", "bus", "messages"]),
    ("model", &[]),
    (
        "sim",
        &["executor", "dispatch", "routing", "messages", "core"],
    ),
    (
        "schedules",
        &["store", "messages", "runtime", "secrets", "core"],
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// What `cargo metadata` says of the workspace's packages.
fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

/// What a package depends on outside of its tests and its build.
fn dependencies(package: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    let dependencies = package["dependencies"].as_array().unwrap().iter();
    dependencies.filter(|dependency| dependency["kind"].is_null())
}

fn name(of: &serde_json::Value) -> &str {
    of["name"].as_str().unwrap()
}

/// The workspace's crates and what each uses of the workspace outside of its tests.
fn edges() -> BTreeMap<String, BTreeSet<String>> {
    let short = |name: &str| name.strip_prefix("attune-").unwrap_or(name).to_owned();
    packages()
        .iter()
        .map(|package| {
            let used = dependencies(package)
                .filter(|dependency| !dependency["path"].is_null())
                .map(|dependency| short(name(dependency)))
                .collect();
            (short(name(package)), used)
        })
        .collect()
}

#[test]
fn crates_use_only_what_they_may() {
    let allowed: BTreeMap<&str, BTreeSet<&str>> = MAY_USE
        .iter()
        .map(|(name, may)| (*name, may.iter().copied().collect()))
        .collect();
    let edges = edges();
    assert!(edges.len() > 10, "the workspace was not found: {edges:?}");
    let forbidden: Vec<String> = edges
        .iter()
        .filter(|(name, _)| *name != "attune")
        .flat_map(|(name, used)| {
            let may = allowed.get(name.as_str());
            used.iter()
                .filter(move |other| !may.is_some_and(|may| may.contains(other.as_str())))
                .map(move |other| format!("{name} -> {other}"))
        })
        .collect();
    assert!(
        forbidden.is_empty(),
        "forbidden dependencies: {forbidden:?}"
    );
}

/// Decisions are made from what they are given: a crate that has no runtime, no store, no bus and
/// no log cannot do otherwise. Of tokio the queues that are waited in take what wakes and what
/// bounds a wait.
#[test]
fn the_crates_that_decide_need_nothing_but_themselves() {
    let may_use: [(&str, &[&str]); 4] = [
        ("attune-dispatch", &["attune-core", "foldhash"]),
        // What it seals follows from what it is given; only new keys are random, and nobody makes one there.
        (
            "attune-secrets",
            &["attune-core", "base64", "ring", "serde_json", "thiserror"],
        ),
        (
            "attune-executor",
            &[
                "attune-core",
                "attune-dispatch",
                "attune-secrets",
                "chrono",
                "dashmap",
                "foldhash",
                "hashbrown",
                "thiserror",
                "tokio",
            ],
        ),
        (
            "attune-routing",
            &[
                "attune-core",
                "attune-messages",
                "bytes",
                "chrono",
                "serde",
                "serde_json",
                "thiserror",
                "uuid",
            ],
        ),
    ];
    let packages = packages();
    for (decides, may_use) in may_use {
        let package = packages.iter().find(|package| name(package) == decides);
        for dependency in dependencies(package.expect("a crate that decides")) {
            let name = name(dependency);
            assert!(may_use.contains(&name), "{decides} -> {name}");
            if name == "tokio" {
                let features = dependency["features"].as_array().unwrap();
                assert_eq!(features, &["sync", "time"]);
                assert_eq!(dependency["uses_default_features"], false);
            }
        }
    }
}

/// The same inputs give the same outputs: nothing there asks for the time, or waits. The queues
/// that programs use as a library do both.
#[test]
fn the_crates_that_decide_ask_no_clock_and_wait_for_nothing() {
    let decides = ["crates/executor/src/", "crates/routing/src/"];
    let decisions: Vec<_> = all_sources()
        .into_iter()
        .filter(|(name, _)| decides.iter().any(|folder| name.starts_with(folder)))
        .filter(|(name, _)| !name.contains("/queue/manager") && !name.ends_with("tests.rs"))
        .map(|(name, text)| {
            // Tests beside the code may do as they like.
            let tests = text.find("mod tests {").unwrap_or(text.len());
            (name, text[..tests].to_owned())
        })
        .collect();
    assert!(decisions.len() > 30);
    let words = [
        "SystemTime",
        "Instant",
        "Utc::now",
        "async ",
        ".await",
        "tokio::",
        "std::fs",
        "std::net",
        "std::thread",
        "std::env",
    ];
    for (name, text) in decisions {
        let code = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        for (number, line) in code.enumerate() {
            let used = words.iter().find(|word| line.contains(**word));
            assert!(used.is_none(), "{name}, line {number} of code: {line}");
        }
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn all_sources() -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    sources(&root.join("crates"), &mut found);
    found
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(&root).unwrap().display().to_string();
            (name, std::fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// A database future that is dropped half-way can leave a connection inside a transaction, and
/// the next user of that connection writes what is never committed. So nothing in the adapters
/// may race against a call: bounds are set on the server's side.
#[test]
fn no_store_adapter_drops_a_database_future() {
    let adapters: Vec<_> = all_sources()
        .into_iter()
        .filter(|(name, _)| name.starts_with("crates/store-") && name.contains("/src/"))
        .collect();
    assert!(adapters.len() > 5);
    for (name, text) in adapters {
        for word in ["select!", "time::timeout", "timeout_at", "timeout("] {
            let used = text.lines().any(|line| {
                line.contains(word)
                    && !line.trim_start().starts_with("//")
                    && !line.contains("_timeout(")
                    && !line.contains("// waiting only")
                    && !line.contains("// or its connection is closed")
            });
            assert!(
                !used,
                "{name} uses {word}: run the call to its end in a task of its own"
            );
        }
    }
}

#[test]
fn files_stay_small() {
    let large: Vec<String> = all_sources()
        .into_iter()
        .filter(|(_, text)| text.lines().count() > 550)
        .map(|(name, text)| format!("{name}: {} lines", text.lines().count()))
        .collect();
    assert!(large.is_empty(), "split these: {large:?}");
}

/// Tests wait for what they need to see; a pause hopes for it.
#[test]
fn tests_do_not_sleep() {
    let sleepers: Vec<String> = all_sources()
        .into_iter()
        .filter(|(name, _)| name.contains("/tests/") || name.ends_with("tests.rs"))
        .filter(|(name, _)| !name.ends_with("architecture.rs"))
        .flat_map(|(name, text)| {
            text.lines()
                .enumerate()
                .filter(|(_, line)| line.contains("::sleep("))
                .filter(|(_, line)| {
                    !["// poll", "// stall"]
                        .iter()
                        .any(|mark| line.contains(mark))
                })
                .map(|(number, line)| format!("{name}:{}: {}", number + 1, line.trim()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(
        sleepers.is_empty(),
        "a pause between two looks at a condition is marked `// poll`, one whose effect is what the \
         test is about `// stall`; others: {sleepers:#?}"
    );
}
