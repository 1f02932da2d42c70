//! Files of submissions: one in JSON on each line.

use attune_core::plain::plain;
use attune_core::strict::{self, Strict};
use attune_core::{RequestId, Submission};
use serde_json::error::Category;

/// A submission and the number of its line, from 1.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) submission: Submission,
}

/// Reads every line, or says what is wrong with each that is none. Blank lines are skipped.
///
/// Each submission gets a request id if it has none, so that it can be sent again when an
/// answer was lost: made from `key` and its place in the file, else a fresh one.
pub(super) fn parse(bytes: &[u8], key: Option<RequestId>) -> Result<Vec<Line>, Vec<String>> {
    let (mut lines, mut problems) = (Vec::new(), Vec::new());
    for (index, text) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let number = index + 1;
        let text = text.trim_ascii();
        if text.is_empty() {
            continue;
        }
        match read(text) {
            Ok(mut submission) => {
                let id = || key.map_or_else(RequestId::fresh, |key| key.of_item(lines.len()));
                submission.request_id.get_or_insert_with(id);
                lines.push(Line { number, submission });
            }
            Err(problem) => problems.push(format!("line {number}: {problem}")),
        }
    }
    if problems.is_empty() {
        Ok(lines)
    } else {
        Err(problems)
    }
}

fn read(text: &[u8]) -> Result<Submission, String> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let explain = |path: String, error: &serde_json::Error| {
        let said = error.to_string();
        let problem = said.split(" at line ").next().unwrap_or(&said);
        if matches!(error.classify(), Category::Syntax | Category::Eof) {
            return format!("not JSON from column {} on", error.column());
        }
        let place = if path.is_empty() {
            String::new()
        } else {
            format!("`{path}`: ")
        };
        format!("{place}{} (column {})", plain(problem), error.column())
    };
    let submission: Submission = serde_path_to_error::deserialize(Strict(&mut deserializer))
        .map_err(|error| explain(strict::place(error.path()), error.inner()))?;
    deserializer
        .end()
        .map_err(|error| explain(String::new(), &error))?;
    submission.check().map_err(|reject| reject.message)?;
    Ok(submission)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_keep_their_numbers_and_get_ids() {
        let text = b"{\"action_ref\":\"a.b\"}\r\n\n  {\"action_ref\":\"a.c\"}\n";
        let lines = parse(text, None).unwrap();
        let numbers: Vec<_> = lines.iter().map(|line| line.number).collect();
        assert_eq!(numbers, [1, 3]);
        let id = |lines: &[Line], index: usize| lines[index].submission.request_id.unwrap();
        assert_ne!(id(&lines, 0), id(&lines, 1));

        // With a key, the same file gives the same ids again.
        let key = Some(RequestId::from_key("nightly"));
        let (first, second) = (parse(text, key).unwrap(), parse(text, key).unwrap());
        assert_eq!(id(&first, 1), id(&second, 1));
        assert_ne!(id(&first, 0), id(&first, 1));
    }

    #[test]
    fn every_bad_line_is_named() {
        let text = b"{\"action_ref\":\"a.b\"}\n{\"action\":1}\noops\n{\"action_ref\":\"A\"}\n\
            {\"action_ref\":\"a.b\",\"labels\":{\"k\":1}}\n\xff\n{\"action_ref\":\"a.b\"} x";
        let problems = parse(text, None).unwrap_err();
        assert_eq!(problems.len(), 6, "{problems:#?}");
        for (problem, start) in problems.iter().zip([
            "line 2: `action`: unknown field `action`",
            "line 3: not JSON from column 1 on",
            "line 4: \"A\" is not an action ref",
            "line 5: `labels.k`: 1 does not fit; expected a text",
            "line 6: not JSON",
            "line 7: not JSON from column 22 on",
        ]) {
            assert!(problem.starts_with(start), "{problem}");
        }
    }
}
