//! Files of documents: YAML, several in each, or JSON where the name of the file says so.

use std::fmt;
use std::path::{Path, PathBuf};

use attune_core::strict::Strict;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::yaml::{self, Tree};

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

/// The files that `path` stands for: itself, or every `*.yaml`, `*.yml` and `*.json` in it, sorted.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    if !std::fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let extension = file.extension();
        let is_yaml = extension.is_some_and(|it| it == "yaml" || it == "yml");
        if (is_yaml || is_json(&file)) && file.is_file() {
            found.push(file);
        }
    }
    found.sort();
    if found.is_empty() {
        return Err(format!(
            "{}: no *.yaml, *.yml or *.json file",
            path.display()
        ));
    }
    Ok(found)
}

/// The documents of a file's text as JSON, so that a file and an HTTP request mean the same and fail the same,
/// and what is wrong with those that are none. Empty ones are left out.
pub(super) fn documents(file: &Path, text: &str) -> (Vec<(Value, Place)>, Vec<String>) {
    // Editors of some systems begin a file with this mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let read: Vec<Result<Value, String>> = match is_json(file) {
        true => json(text),
        false => {
            let trees = yaml::documents(text).into_iter();
            trees.map(|tree| tree.and_then(Tree::into_json)).collect()
        }
    };
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for (index, document) in read.into_iter().enumerate() {
        let place = Place {
            file: file.to_owned(),
            document: index + 1,
        };
        match document {
            Ok(Value::Null) => {}
            Ok(value) => found.push((value, place)),
            Err(problem) => problems.push(format!("{place}: {problem}")),
        }
    }
    (found, problems)
}

/// Whether a file holds JSON: nearly all JSON is YAML, too, but not all of it, and it does not mean the same.
fn is_json(file: &Path) -> bool {
    let extension = file.extension();
    extension.is_some_and(|it| it.eq_ignore_ascii_case("json"))
}

/// The values of a text, one after the other, up to the first that is no JSON.
fn json(text: &str) -> Vec<Result<Value, String>> {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Once>();
    values
        .map(|value| value.map(|it| it.0).map_err(|error| error.to_string()))
        .collect()
}

/// A value in which each key stands once.
struct Once(Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Value::deserialize(Strict(from)).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(name: &str, text: &str) -> (Vec<Value>, Vec<String>) {
        let (found, problems) = documents(Path::new(name), text);
        (
            found.into_iter().map(|(value, _)| value).collect(),
            problems,
        )
    }

    #[test]
    fn a_json_file_is_read_as_json() {
        let text = "\u{feff}{\"a\": \"\\ud83d\\ude00\", \"<<\": {\"b\": 1}}\n{\"c\": 18446744073709551616} null [1]";
        let (found, problems) = read("a.JSON", text);
        assert_eq!(problems, Vec::<String>::new());
        let first = json!({"a": "\u{1f600}", "<<": {"b": 1}});
        assert_eq!(
            found,
            [
                first,
                json!({"c": 18_446_744_073_709_551_616.0}),
                json!([1])
            ]
        );
        for (text, problem) in [
            (
                "{\"a\":\n \"\\ud83d\"}",
                "a.json, document 1: unexpected end of hex escape at line 2 column 9",
            ),
            (
                "{} {\"a\": {\"b\": 1,\n\"b\": 2}}",
                "a.json, document 2: duplicate field `b` at line 2 column 3",
            ),
            (
                "{\"a\": 1e400}",
                "a.json, document 1: number out of range at line 1 column",
            ),
            (
                "{}\n---\n{}",
                "a.json, document 2: invalid number at line 2 column 2",
            ),
            (
                "a: 1",
                "a.json, document 1: expected value at line 1 column 1",
            ),
            (
                "{\"a\": 1, # no\n}",
                "a.json, document 1: key must be a string at line 1",
            ),
        ] {
            let (_, problems) = read("a.json", text);
            let [found] = problems.as_slice() else {
                panic!("{text}: {problems:?}")
            };
            assert!(found.starts_with(problem), "{found}");
        }
        let (_, problems) = read("a.json", &"[".repeat(1_000_000));
        assert!(problems[0].contains("recursion limit"), "{problems:?}");
        // Without the name it is YAML.
        assert_eq!(read("a.yaml", "{a: 1}").0, [json!({"a": 1})]);
    }

    #[test]
    fn a_folder_stands_for_its_files() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.yml", "a.yaml", "c.txt", "d.json"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join("d.yaml")).unwrap();
        let found = files(folder.path()).unwrap();
        let names: Vec<_> = found
            .iter()
            .map(|it| it.file_name().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["a.yaml", "b.yml", "d.json"]);
        assert!(
            files(&folder.path().join("x.yaml"))
                .unwrap_err()
                .contains("x.yaml")
        );
    }
}
