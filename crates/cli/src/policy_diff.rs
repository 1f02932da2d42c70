//! `attune policy diff`: what applying documents would change, and what two versions of one say differently.

use std::path::PathBuf;

use attune_api_types::{PolicyDifference, PolicyResult, PolicyVersions, PolicyView};
use attune_core::PolicyTarget;
use attune_core::policy::Content;
use serde::Serialize;
use serde_json::Value;

use super::http::Http;
use super::policies::{checked, named, path_of, version_of};
use super::render::{Column, or_dash, table};
use super::{Exit, Failure, Output};

/// Shown below its options.
pub(super) const EXIT_CODES: &str = "Exit codes:
  0  no difference
  1  there are differences
  2  wrong usage, or the server refused: what stands in the files could not be applied
  3  no server, or it has not answered";

/// What it says with `--json`.
#[derive(Debug, Serialize)]
struct Differences {
    differences: Vec<PolicyDifference>,
}

/// What applying files would change of what is in force. The server checks them as it does before it applies
/// them, and stores nothing.
pub(super) async fn files(http: &Http, paths: &[PathBuf], json: bool) -> Result<Output, Failure> {
    if let Ok(target) = named(paths, "")
        && !paths.iter().any(|path| path.exists())
    {
        let words = format!(
            "there are no such files; to compare versions of {target} say which: `attune policy diff --from N \
             [--to M] {target}`"
        );
        return Err(Failure::usage(words));
    }
    let (checked, many) = checked(http, paths).await?;
    if checked.others > checked.differences.len() {
        let words =
            "the server is of an earlier release and does not tell what would change; update it";
        return Err(Failure::unknown(words));
    }
    let none = format!("nothing to change: {many} of {many} documents say what is in force");
    Ok(output(checked.differences, &none, json))
}

/// What two versions of a document say differently; the newest in the place of `to`.
pub(super) async fn versions(
    http: &Http,
    words: &[PathBuf],
    from: i64,
    to: Option<i64>,
    json: bool,
) -> Result<Output, Failure> {
    let target = named(words, "attune policy diff --from N --to M SCOPE TARGET")?;
    let before = version_of(http, &target, from).await?;
    let after = match to {
        Some(to) => version_of(http, &target, to).await?,
        None => newest(http, &target).await?,
    };
    let number = after.version;
    let (before, after) = (stored(&target, before), stored(&target, after));
    let differences = match before == after {
        true => Vec::new(),
        false => vec![PolicyDifference::between(
            &target,
            before.as_ref(),
            after.as_ref(),
        )],
    };
    let none = format!("versions {from} and {number} of {target} say the same");
    Ok(output(differences, &none, json))
}

async fn newest(http: &Http, target: &PolicyTarget) -> Result<PolicyView, Failure> {
    let path = format!("{}/versions", path_of(target));
    let query = [("limit", Some("1".to_owned()))];
    let mut page: PolicyVersions = http.get(&path, &query).await?;
    let newest = page.versions.pop();
    newest.ok_or_else(|| Failure::usage(format!("nothing was ever said of {target}")))
}

/// A version as it is compared with others: read and written anew, so that only what it says counts. What
/// this program cannot read is compared as it stands.
fn stored(target: &PolicyTarget, version: PolicyView) -> Option<Value> {
    let document = version.document?;
    let content = document.read().map(|(_, content)| content);
    let stored = content.as_ref().map(Content::stored);
    let stored = stored.unwrap_or_else(|_| serde_json::json!(document));
    Some(match target {
        PolicyTarget::Action(_) if content.is_ok() => serde_json::json!({"policy": stored}),
        _ => stored,
    })
}

fn output(differences: Vec<PolicyDifference>, none: &str, json: bool) -> Output {
    let exit = match differences.is_empty() {
        true => Exit::Done,
        false => Exit::NotSucceeded,
    };
    let output = match (json, differences.is_empty()) {
        (true, _) => Output::json(&Differences { differences }),
        (false, true) => Output::text(none),
        (false, false) => Output::text(fields_table(&differences)),
    };
    output.with(exit, Vec::new())
}

/// What has become of a document, in a word.
pub(super) fn word(result: PolicyResult) -> &'static str {
    match result {
        PolicyResult::Created => "created",
        PolicyResult::Changed => "changed",
        PolicyResult::Removed => "removed",
        PolicyResult::Other => "-",
    }
}

/// A line for each field; one for a document that says nothing.
pub(super) fn fields_table(differences: &[PolicyDifference]) -> String {
    let value = |value: &Option<Value>| or_dash(value.as_ref());
    let rows = differences.iter().flat_map(|of| {
        let result = word(of.result);
        let row = move |field: &str, before: String, after: String| {
            vec![
                of.scope.clone(),
                or_dash(of.target.clone()),
                result.to_owned(),
                field.to_owned(),
                before,
                after,
            ]
        };
        let nothing = || row("-", "-".to_owned(), "-".to_owned());
        let nothing = of.fields.is_empty().then(nothing);
        let fields = of.fields.iter();
        let fields = fields.map(move |it| row(&it.field, value(&it.before), value(&it.after)));
        nothing.into_iter().chain(fields)
    });
    let columns = [
        Column::Words("scope"),
        Column::Words("target"),
        Column::Words("result"),
        Column::Words("field"),
        Column::Words("before"),
        Column::Words("after"),
    ];
    table(&columns, rows.collect())
}

#[cfg(test)]
mod tests {
    use attune_core::PolicyScope;
    use serde_json::json;

    use super::super::policy_file::read;
    use super::*;

    #[test]
    fn every_field_has_a_line_and_the_exit_code_says_whether_there_is_one() {
        let pack = PolicyTarget::of(PolicyScope::Pack, "shop").unwrap();
        let user = PolicyTarget::of(PolicyScope::User, "ann").unwrap();
        let before = json!({"action_defaults": {"queue": {"max_length": 500}}});
        let after = json!({"action_defaults": {"queue": {"max_length": 900, "ordering": "fifo"}}});
        let differences = vec![
            PolicyDifference::between(&pack, Some(&before), Some(&after)),
            PolicyDifference::between(&user, None, Some(&json!({}))),
        ];
        let said = output(differences, "none", false);
        assert_eq!(said.exit, Exit::NotSucceeded);
        assert_eq!(
            said.text,
            "scope  target  result   field                             before  after\n\
             pack   shop    changed  action_defaults.queue.max_length  500     900\n\
             pack   shop    changed  action_defaults.queue.ordering    -       \"fifo\"\n\
             user   ann     created  -                                 -       -"
        );
        let same = output(Vec::new(), "none", false);
        assert_eq!((same.exit, same.text.as_str()), (Exit::Done, "none"));
        let json = output(Vec::new(), "none", true);
        assert_eq!(
            serde_json::from_str::<Value>(&json.text).unwrap(),
            json!({"differences": []})
        );
    }

    #[test]
    fn hostile_files_are_refused_with_their_place() {
        let deep = format!(
            "action_defaults: {}{}",
            "[".repeat(5_000),
            "]".repeat(5_000)
        );
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let of = vec![format!("*a{}", n - 1); 10].join(", ");
            laughs.push_str(&format!("a{n}: &a{n} [{of}]\n"));
        }
        let huge = "scope: global\naction_defaults: {queue: {max_length: 1e400}}\n";
        for text in [
            deep.as_str(),
            &laughs,
            huge,
            "scope: user\ntarget: \"a\\0b\"\n",
        ] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("a.yaml"), text).unwrap();
            let read = read(&[folder.path().to_owned()]);
            let message = read.unwrap_err().message;
            assert!(message.contains("document 1"), "{message}");
        }
    }
}
