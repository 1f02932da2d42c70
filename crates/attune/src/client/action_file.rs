//! Action files: YAML, one document for each action.

use std::fmt;
use std::path::{Path, PathBuf};

use attune_core::ActionSpec;
use serde::Deserialize;
use serde_json::{Map, Value};

/// An action and where it is written.
#[derive(Debug)]
pub(super) struct FileAction {
    pub(super) spec: ActionSpec,
    pub(super) place: Place,
}

/// A document in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: PathBuf,
    /// From 1; empty documents count.
    pub(super) document: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, document {}", self.file.display(), self.document)
    }
}

/// The files that `path` stands for: itself, or every `*.yaml` and `*.yml` in it, sorted.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let is_yaml = file
            .extension()
            .is_some_and(|it| it == "yaml" || it == "yml");
        if is_yaml && file.is_file() {
            found.push(file);
        }
    }
    found.sort();
    if found.is_empty() {
        return Err(format!("{}: no *.yaml or *.yml file", path.display()));
    }
    Ok(found)
}

/// The actions of a file's text, and what is wrong with the documents that are none.
pub(super) fn parse(file: &Path, text: &str) -> (Vec<FileAction>, Vec<String>) {
    let (mut actions, mut problems) = (Vec::new(), Vec::new());
    for (index, document) in yaml_serde::Deserializer::from_str(text).enumerate() {
        let place = Place {
            file: file.to_owned(),
            document: index + 1,
        };
        let value = match yaml_serde::Value::deserialize(document) {
            Ok(value) => value,
            Err(error) => {
                // What follows broken YAML cannot be told apart any more.
                problems.push(format!("{place}: {error}"));
                break;
            }
        };
        match read(value) {
            Ok(Some(spec)) => actions.push(FileAction { spec, place }),
            Ok(None) => {}
            Err(problem) => problems.push(format!("{place}: {problem}")),
        }
    }
    (actions, problems)
}

/// The action in a document; `None` for an empty one.
fn read(mut document: yaml_serde::Value) -> Result<Option<ActionSpec>, String> {
    if document.is_null() {
        return Ok(None);
    }
    document.apply_merge().map_err(|error| error.to_string())?;
    // By way of JSON, so that a file and an HTTP request mean the same and fail the same.
    let value = to_json(document, "")?;
    let spec: ActionSpec = serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let problem = error.inner();
        if path == "." {
            problem.to_string()
        } else {
            format!("{path}: {problem}")
        }
    })?;
    spec.check().map_err(|reject| reject.message)?;
    Ok(Some(spec))
}

/// The same value in JSON, which has fewer kinds of values.
fn to_json(value: yaml_serde::Value, path: &str) -> Result<Value, String> {
    use yaml_serde::Value as Yaml;
    let at = |problem: &str| {
        if path.is_empty() {
            problem.to_owned()
        } else {
            format!("{path}: {problem}")
        }
    };
    Ok(match value {
        Yaml::Null => Value::Null,
        Yaml::Bool(value) => Value::Bool(value),
        Yaml::String(text) => Value::String(text),
        Yaml::Number(number) => {
            let number = number
                .as_i64()
                .map(serde_json::Number::from)
                .or_else(|| number.as_u64().map(serde_json::Number::from))
                .or_else(|| number.as_f64().and_then(serde_json::Number::from_f64));
            Value::Number(number.ok_or_else(|| at("the number must be finite"))?)
        }
        Yaml::Sequence(items) => {
            let items = items.into_iter().enumerate();
            let items = items.map(|(index, item)| to_json(item, &join(path, &index.to_string())));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        Yaml::Mapping(mapping) => {
            let mut map = Map::new();
            for (key, value) in mapping {
                let Yaml::String(key) = key else {
                    return Err(at("keys must be words; put quotes around this one"));
                };
                let value = to_json(value, &join(path, &key))?;
                map.insert(key, value);
            }
            Value::Object(map)
        }
        Yaml::Tagged(tagged) => {
            return Err(at(&format!("the tag {} has no meaning here", tagged.tag)));
        }
    })
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

/// An action as a file that could be applied.
pub(super) fn write(spec: &ActionSpec) -> String {
    // By way of JSON: YAML's own form of a choice is a tag, which action files do not use.
    let value = serde_json::to_value(spec).expect("a spec has string keys");
    yaml_serde::to_string(&value).expect("JSON is YAML")
}

#[cfg(test)]
mod tests {
    use attune_core::Run;

    use super::*;

    fn parsed(text: &str) -> (Vec<ActionSpec>, Vec<String>) {
        let (actions, problems) = parse(Path::new("a.yaml"), text);
        (
            actions.into_iter().map(|action| action.spec).collect(),
            problems,
        )
    }

    #[test]
    fn a_file_may_hold_several_documents() {
        let (specs, problems) = parsed(
            "# the first\nref: demo.build\nrun: {program: [/bin/echo, hi]}\n\
             policy: {concurrency: {limit: 2}, queue: {max_length: 100, timeout_seconds: 60}}\n\
             ---\n---\nref: demo.test\nrun:\n  builtin: sleep\nparameters:\n  type: object\n  \
             properties: {seconds: {type: number, minimum: 0.5}}\n",
        );
        assert_eq!(problems, Vec::<String>::new());
        assert_eq!(specs.len(), 2);
        assert_eq!(
            specs[0].run,
            Run::Program(vec!["/bin/echo".to_owned(), "hi".to_owned()])
        );
        assert_eq!(specs[0].policy.concurrency.limit, Some(2));
        assert_eq!(specs[0].policy.queue.timeout_seconds, Some(60));
        let minimum = &specs[1].parameters.as_ref().unwrap()["properties"]["seconds"]["minimum"];
        assert_eq!(minimum, &serde_json::json!(0.5));
    }

    #[test]
    fn problems_name_file_document_and_field() {
        let good = "ref: demo.build\nrun: {builtin: noop}\n---\n";
        for (bad, problem) in [
            ("ref: demo.b", "missing field `run`"),
            (
                "ref: Demo\nrun: {builtin: noop}",
                "ref: \"Demo\" is not an action ref",
            ),
            (
                "ref: a.b\nrun: {builtin: noop}\npolicy: {concurrency: {limt: 2}}",
                "policy.concurrency.limt: unknown field `limt`, expected `limit`",
            ),
            (
                "ref: a.b\nrun: {builtin: noop}\ntimeout_seconds: 0",
                "`timeout_seconds` is 0",
            ),
            ("ref: a.b\nrun: {program: /bin/true}", "run"),
            (
                "ref: a.b\nrun: !program [/bin/true]",
                "run: the tag !program has no meaning here",
            ),
            ("ref: a.b\n1: x", "keys must be words"),
            (
                "ref: a.b\nparameters: {a: .nan}",
                "parameters.a: the number must be finite",
            ),
            ("ref: a.b\nref: a.c", "duplicate"),
            ("ref: [a.b", "line 5"),
        ] {
            let (specs, problems) = parsed(&format!("{good}{bad}"));
            assert_eq!(specs.len(), 1, "{bad}");
            let [found] = problems.as_slice() else {
                panic!("{bad}: {problems:?}")
            };
            assert!(found.starts_with("a.yaml, document 2: "), "{found}");
            assert!(found.contains(problem), "{found}");
        }
    }

    #[test]
    fn what_is_shown_can_be_applied() {
        for spec in ActionSpec::core_pack() {
            assert_eq!(parsed(&write(&spec)), (vec![spec], Vec::new()));
        }
    }

    #[test]
    fn a_folder_stands_for_its_yaml_files() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.yml", "a.yaml", "c.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("d.yaml")).unwrap();
        let found = files(folder.path()).unwrap();
        let names: Vec<_> = found
            .iter()
            .map(|it| it.file_name().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["a.yaml", "b.yml"]);
        assert!(
            files(&folder.path().join("x.yaml"))
                .unwrap_err()
                .contains("x.yaml")
        );
    }
}
