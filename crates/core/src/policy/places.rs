//! Whether a policy can go by a place.

use serde_json::Value;

use super::path::{InSchema, MAX_VALUE_BYTES, Path};
use crate::reject::Reject;
use crate::secret::Marks;

/// Checks that what stands at a place is stored with an execution: it may have to be read again.
pub(super) fn check_stored(field: &str, path: &Path) -> Result<(), Reject> {
    if !matches!(path, Path::Source | Path::Tier) {
        return Ok(());
    }
    let words =
        format!("`{field}` names `{path}`, which is not supported there yet; name another one");
    Err(Reject::field(field, words))
}

/// Checks that an execution of an action can say something at such a place.
pub(super) fn check_path(
    field: &str,
    path: &Path,
    parameters: Option<&Value>,
) -> Result<(), Reject> {
    if let Some(most) = path.exceeds() {
        let words =
            format!("`{field}` names a place by more than {most} bytes; take a shorter name");
        return Err(Reject::field(field, words));
    }
    if is_secret(path, parameters) {
        let words = format!(
            "`{field}` names `{path}`, which the schema of the action's parameters marks as secret: what policies \
             go by is shown; name another place"
        );
        return Err(Reject::field(field, words));
    }
    if parameters.is_none_or(|schema| path.schema(schema) != InSchema::Absent) {
        return Ok(());
    }
    let words = format!(
        "`{field}` names `{path}`, which the schema of the action's parameters does not have; name one \
         that it has, or add it to `parameters.properties`"
    );
    Err(Reject::field(field, words))
}

/// Whether what stands at a place is secret, or is in something that is.
fn is_secret(path: &Path, parameters: Option<&Value>) -> bool {
    let Path::Parameter(parts) = path else {
        return false;
    };
    let marks = parameters.and_then(Marks::of);
    marks.is_some_and(|marks| marks.covers(parts.iter().map(AsRef::as_ref)))
}

/// As [`check_path`], where executions are told apart by what stands there.
pub(super) fn check_key(
    field: &str,
    path: &Path,
    parameters: Option<&Value>,
) -> Result<(), Reject> {
    check_path(field, path, parameters)?;
    let default = parameters.and_then(|schema| path.default(schema));
    let bytes = default.map_or(0, |default| default.to_string().len());
    if bytes <= MAX_VALUE_BYTES {
        return Ok(());
    }
    let words = format!(
        "`{field}` names `{path}`, whose `default` in the schema of the action's parameters has {bytes} bytes; \
         executions are told apart by {MAX_VALUE_BYTES} at most"
    );
    Err(Reject::field(field, words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ActionPolicy;

    #[test]
    fn nothing_goes_by_what_is_secret() {
        let schema = serde_json::json!({"properties": {"n": {"writeOnly": true}, "m": {}}});
        for policy in [
            r#"{"concurrency": {"limit": 5, "cost": {"path": "parameters.n", "max": 4}}}"#,
            r#"{"concurrency": {"group_by": ["parameters.n"], "group_limit": 1}}"#,
            r#"{"rate_limit": {"max_executions": 1, "window_seconds": 1, "by": ["parameters.n"]}}"#,
            r#"{"fairness": {"by": ["parameters.n"]}}"#,
            r#"{"priority": {"rules": [{"when": {"parameters.n": 1}, "then": "low"}]}}"#,
        ] {
            let check = |text: &str| {
                let policy: ActionPolicy = serde_json::from_str(text).unwrap();
                policy.check(Some(&schema))
            };
            let reject = check(policy).unwrap_err();
            assert!(reject.message.contains("secret"), "{reject}");
            assert_eq!(
                check(&policy.replace("parameters.n", "parameters.m")),
                Ok(())
            );
        }
    }

    #[test]
    fn a_default_that_nothing_can_go_by_is_refused() {
        let cost = r#"{"concurrency": {"limit": 5, "cost": {"path": "parameters.n", "max": 4}}}"#;
        let group = r#"{"concurrency": {"group_by": ["parameters.n"], "group_limit": 1}}"#;
        let rate =
            r#"{"rate_limit": {"max_executions": 1, "window_seconds": 1, "by": ["parameters.n"]}}"#;
        let fair = r#"{"fairness": {"by": ["parameters.n"]}}"#;
        let field = |policy: &str, default: Value| {
            let policy: ActionPolicy = serde_json::from_str(policy).unwrap();
            let schema = serde_json::json!({"properties": {"n": {"default": default}}});
            policy.check(Some(&schema)).map_err(|it| it.field.unwrap())
        };
        for right in [Value::Null, 4.into(), "1".into()] {
            assert_eq!(field(cost, right), Ok(()));
        }
        let path = "policy.concurrency.cost.path".to_owned();
        for wrong in [
            99.into(),
            0.into(),
            "many".into(),
            serde_json::json!({"x": 1}),
        ] {
            assert_eq!(field(cost, wrong), Err(path.clone()));
        }
        let long = || Value::from("x".repeat(5_000));
        for (policy, place) in [
            (group, "policy.concurrency.group_by"),
            (rate, "policy.rate_limit.by"),
            (fair, "policy.fairness.by"),
        ] {
            assert_eq!(field(policy, "short".into()), Ok(()));
            assert_eq!(field(policy, long()), Err(place.to_owned()));
        }
    }
}
