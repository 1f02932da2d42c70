//! Action files: YAML or JSON, one document for each action.

use std::path::Path;

use attune_core::ActionSpec;
use attune_core::plain::plain;
use attune_core::strict::{self, Strict};
use serde_json::{Value, json};

use super::documents::{Place, documents};

/// An action and where it is written.
#[derive(Debug)]
pub(super) struct FileAction {
    pub(super) spec: ActionSpec,
    pub(super) place: Place,
}

/// The actions of a file's text, and what is wrong with the documents that are none.
pub(super) fn parse(file: &Path, text: &str) -> (Vec<FileAction>, Vec<String>) {
    let (documents, mut problems) = documents(file, text);
    let mut actions = Vec::new();
    for (document, place) in documents {
        match read(document) {
            Ok(spec) => actions.push(FileAction { spec, place }),
            Err(found) => {
                problems.extend(found.iter().map(|problem| format!("{place}: {problem}")));
            }
        }
    }
    (actions, problems)
}

/// The action in a document, or everything that is wrong with it.
fn read(mut value: Value) -> Result<ActionSpec, Vec<String>> {
    if value.get("scope").is_some() && value.get("ref").is_none() {
        let words = "it is a policy document: `attune policy apply` takes it";
        return Err(vec![words.to_owned()]);
    }
    let mut problems = Vec::new();
    let mut taken_out: Vec<String> = Vec::new();
    loop {
        let wrong = match judge(&value) {
            Ok(spec) if problems.is_empty() => return Ok(spec),
            Ok(_) => return Err(problems),
            Err(wrong) => wrong,
        };
        // What is no better for having been mended stands in the way of all that may follow.
        if problems.contains(&wrong.problem) {
            return Err(problems);
        }
        let is_new = !taken_out.iter().any(|place| wrong.misses(place));
        if is_new {
            problems.push(wrong.problem);
        }
        // With the mistake out of the way, the next one is found.
        let is_enough = problems.len() > PROBLEMS_TOLD || taken_out.len() > 2 * PROBLEMS_TOLD;
        // What cannot be without what was taken out goes, too.
        let inside = wrong
            .place
            .rsplit_once('.')
            .map_or("", |(inside, _)| inside);
        if is_enough || !(mend(&mut value, &wrong.place) || (!is_new && mend(&mut value, inside))) {
            return Err(problems);
        }
        taken_out.push(wrong.place);
    }
}

/// How many mistakes of one document are told, at most.
const PROBLEMS_TOLD: usize = 20;

/// A mistake, and the dotted place of the value that has it or lacks.
struct Wrong {
    place: String,
    problem: String,
}

impl Wrong {
    /// Whether it is wrong only because this place was taken out, for what was wrong there.
    fn misses(&self, place: &str) -> bool {
        let (inside, member) = place.rsplit_once('.').unwrap_or(("", place));
        let lacks = self.problem.contains(&format!("missing field `{member}`"));
        self.place == place
            || self.problem.contains(&format!("`{place}`"))
            || (lacks && self.place == inside)
    }
}

fn judge(value: &Value) -> Result<ActionSpec, Wrong> {
    let spec: ActionSpec = serde_path_to_error::deserialize(Strict(value)).map_err(|error| {
        let path = strict::place(error.path());
        let said = error.inner().to_string();
        let problem = plain(&said);
        if path.is_empty() {
            let missing = said.strip_prefix("missing field `");
            let name = missing.and_then(|name| name.strip_suffix('`'));
            return Wrong {
                place: name.unwrap_or_default().to_owned(),
                problem: problem.into_owned(),
            };
        }
        let problem = match path.as_str() {
            "run" if problem.ends_with("exactly one member") => {
                "write either `program` or `builtin`, one of the two".into()
            }
            _ => problem,
        };
        Wrong {
            problem: format!("{path}: {problem}"),
            place: path,
        }
    })?;
    spec.check().map_err(|reject| Wrong {
        place: reject.field.unwrap_or_default(),
        problem: reject.message,
    })?;
    Ok(spec)
}

/// Puts something right in the place of a member that no action can lack, and takes any other out.
/// False when nothing can be done.
fn mend(value: &mut Value, place: &str) -> bool {
    let Some(members) = value.as_object_mut() else {
        return false;
    };
    let (first, rest) = place.split_once('.').unwrap_or((place, ""));
    match first {
        "ref" => drop(members.insert("ref".to_owned(), json!("any.action"))),
        "run" => drop(members.insert("run".to_owned(), json!({"builtin": "noop"}))),
        _ if rest.is_empty() => return members.remove(first).is_some(),
        // A list is one setting: it goes as a whole.
        _ if members.get(first).is_some_and(Value::is_array) => drop(members.remove(first)),
        _ => {
            return members
                .get_mut(first)
                .is_some_and(|inner| mend(inner, rest));
        }
    }
    true
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
    fn a_mistake_in_a_list_hides_no_other() {
        let (specs, problems) = parsed(
            "ref: m.one\nrun: {builtin: noop}\ntimeout_seconds: 0\npolicy:\n  quotas: [{per: week, max: 1}]\n  \
             priority: {rules: [{when: {user: ann}, then: soon}]}\n  retry: {max_attempts: x}\n",
        );
        assert_eq!(specs.len(), 0);
        for place in [
            "policy.quotas.0.per",
            "policy.priority.rules.0.then",
            "policy.retry.max_attempts",
            "`timeout_seconds`",
        ] {
            let told = problems.iter().any(|problem| problem.contains(place));
            assert!(told, "{place}: {problems:?}");
        }
    }

    #[test]
    fn a_policy_document_is_told_its_command() {
        let (_, problems) = parsed("scope: user\ntarget: ann\ntier: gold\n");
        assert_eq!(
            problems,
            ["a.yaml, document 1: it is a policy document: `attune policy apply` takes it"]
        );
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
                "policy.concurrency.limt: unknown field `limt`, expected one of `limit`",
            ),
            (
                "ref: a.b\nrun: {builtin: noop}\ntimeout_seconds: 0",
                "`timeout_seconds` is 0",
            ),
            ("ref: a.b\nrun: {program: /bin/true}", "run"),
            (
                "ref: a.b\nrun: {program: [], builtin: noop}",
                "run: write either `program` or `builtin`, one of the two",
            ),
            (
                "ref: a.b\nrun: {}",
                "run: write either `program` or `builtin`, one of the two",
            ),
            (
                "ref: a.b\nrun: !program [/bin/true]",
                "run: the tag !program has no meaning here",
            ),
            ("ref: a.b\n1: x", "keys must be words"),
            (
                "ref: a.b\nparameters: {a: .nan}",
                "parameters.a: the number must be finite",
            ),
            (
                "ref: a.b\nref: a.c",
                "document 2: `ref` is there twice, in lines 4 and 5: ",
            ),
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
    fn every_mistake_of_a_document_is_told() {
        let (specs, problems) = parsed(
            "ref: A\nrun: {program: /bin/true}\ntimeout_seconds: -1\npool: [x]\nlimit: 3\n\
             policy: {concurrency: {limit: 0}, queue: {max_length: many}}\nmax_attempts: 0\n",
        );
        assert_eq!(specs, Vec::new());
        let fields = [
            "ref: \"A\" is not an action ref",
            "run.program: the text \"/bin/true\" does not fit; expected a list",
            "limit: unknown field",
            "timeout_seconds: -1 does not fit; expected a whole number",
            "pool: a list does not fit; expected a text",
            "policy.queue.max_length: the text \"many\" does not fit; expected a whole number",
            "`policy.concurrency.limit` must be from 1",
            "`max_attempts` must be from 1",
        ];
        assert_eq!(problems.len(), fields.len(), "{problems:#?}");
        for field in fields {
            let is_told = problems.iter().any(|problem| {
                problem
                    .strip_prefix("a.yaml, document 1: ")
                    .is_some_and(|it| it.starts_with(field))
            });
            assert!(is_told, "{field}: {problems:#?}");
        }
    }

    /// What was wrong is taken out to find the next mistake, and is not missed then.
    #[test]
    fn nothing_is_said_to_be_missing_that_was_wrong() {
        for (policy, field) in [
            (
                "{rate_limit: {max_executions: 0, window_seconds: 60}}",
                "policy.rate_limit.max_executions",
            ),
            (
                "{concurrency: {limit: 3, cost: {path: labels.g, max: 4}}}",
                "policy.concurrency.cost.max",
            ),
            (
                "{concurrency: {limit: 3, group_by: [user], group_limit: 4}}",
                "policy.concurrency.group_limit",
            ),
            (
                "{concurrency: {group_by: [user, user], group_limit: 1}}",
                "policy.concurrency.group_by",
            ),
            ("{fairness: {by: [group]}}", "policy.fairness.by"),
        ] {
            let text =
                format!("ref: a.b\nrun: {{builtin: noop}}\npolicy: {policy}\nmax_attempts: 0\n");
            let (_, problems) = parsed(&text);
            assert_eq!(problems.len(), 2, "{policy}: {problems:#?}");
            assert!(
                problems[0].contains(field) || problems[1].contains(field),
                "{problems:#?}"
            );
            assert!(
                problems.iter().any(|it| it.contains("max_attempts")),
                "{problems:#?}"
            );
        }
    }

    #[test]
    fn what_is_shown_can_be_applied() {
        for spec in ActionSpec::core_pack() {
            assert_eq!(parsed(&write(&spec)), (vec![spec], Vec::new()));
        }
    }
}
