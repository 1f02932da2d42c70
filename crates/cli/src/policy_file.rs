//! Policy files: YAML or JSON, several documents in each.

use std::collections::HashMap;
use std::path::PathBuf;

use attune_core::plain::plain;
use attune_core::strict::{self, Strict};
use attune_core::{PolicyDocument, PolicyTarget};
use serde_json::Value;

use super::documents::{self, Place};
use super::{Failure, bounded};

/// Reads every file before anything is applied: a mistake in the last one must not leave the
/// first ones applied.
pub(super) fn read(paths: &[PathBuf]) -> Result<Vec<PolicyDocument>, Failure> {
    let (mut documents, mut problems) = (Vec::new(), Vec::new());
    let mut seen: HashMap<PolicyTarget, Place> = HashMap::new();
    for path in paths {
        let files = documents::files(path).unwrap_or_else(|problem| {
            problems.push(problem);
            Vec::new()
        });
        for file in files {
            let text = match bounded::read_file(&file) {
                Ok(text) => text,
                Err(error) => {
                    problems.push(format!("{}: {error}", file.display()));
                    continue;
                }
            };
            let (found, wrong) = documents::documents(&file, &text);
            problems.extend(wrong);
            for (value, place) in found {
                match document(&value) {
                    Ok((target, document)) => {
                        if let Some(first) = seen.insert(target.clone(), place.clone()) {
                            problems.push(format!("{place}: {target} is also in {first}"));
                        }
                        documents.push(document);
                    }
                    Err(problem) => problems.push(format!("{place}: {problem}")),
                }
            }
        }
    }
    if problems.is_empty() && documents.is_empty() {
        let names: Vec<String> = paths
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        problems.push(format!(
            "{}: there is no policy document in it",
            names.join(", ")
        ));
    }
    match problems.as_slice() {
        [] => Ok(documents),
        problems => Err(Failure::usage(problems.join("\n"))),
    }
}

fn document(value: &Value) -> Result<(PolicyTarget, PolicyDocument), String> {
    if value.get("run").is_some() && value.get("scope").is_none() {
        return Err("it is an action: `attune action apply` takes it".to_owned());
    }
    let document: PolicyDocument =
        serde_path_to_error::deserialize(Strict(value)).map_err(|error| {
            let (path, said) = (strict::place(error.path()), error.inner().to_string());
            let problem = plain(&said).into_owned();
            match path.as_str() {
                "" => problem,
                path => format!("{path}: {problem}"),
            }
        })?;
    let (target, _) = document.read().map_err(|reject| reject.message)?;
    Ok((target, document))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(text: &str) -> Result<Vec<PolicyDocument>, Failure> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.yaml"), text).unwrap();
        read(&[folder.path().to_owned()])
    }

    #[test]
    fn a_file_has_several_documents_and_every_mistake_is_told() {
        let read = files(
            "scope: global\naction_defaults: {queue: {timeout_seconds: 60}}\n---\n---\n\
             {\"scope\": \"user\", \"target\": \"*\", \"tier\": \"bronze\"}\n",
        );
        assert_eq!(read.unwrap().len(), 2);
        let wrong = files(
            "scope: globl\n---\nscope: user\ntarget: ann\nweight: 3\n---\nscope: user\ntarget: bob\n---\n\
             scope: user\ntarget: bob\n---\nscope: pack\ntarget: p\naction_defaults: {queue: {max: 1}}\n",
        );
        let message = wrong.unwrap_err().message;
        for words in [
            "document 1: scope: unknown variant `globl`",
            "document 2: `weight` is not supported yet",
            "document 4: user bob is also in",
            "document 5: `action_defaults.queue.max`: unknown field",
        ] {
            assert!(message.contains(words), "{words}: {message}");
        }
        let action = files("ref: a.b\nrun: {builtin: noop}\n").unwrap_err();
        assert!(action.message.contains("attune action apply"), "{action:?}");
        let empty = files("# nothing\n").unwrap_err().message;
        let (file, words) = empty.split_once(": ").unwrap();
        assert_eq!(words, "there is no policy document in it");
        assert!(std::path::Path::new(file).is_absolute(), "{empty}");
    }
}
