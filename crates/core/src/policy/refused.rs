//! What of a document is refused with words of its own: what is not there yet, and what has no meaning
//! where it stands.

use serde_json::Value;

use super::document::PolicyScope;
use crate::reject::Reject;

pub(super) fn not_yet(field: &str, instead: &str) -> Reject {
    let words = format!("`{field}` is not supported yet in this scope; {instead}");
    Reject::field(field, words)
}

pub(super) fn misplaced(field: &str, place: &str) -> Reject {
    let words = format!("`{field}` has no meaning in this scope: {place}; leave it out");
    Reject::field(field, words)
}

/// What limits executions, whatever it stands in.
const LIMITS: [&str; 5] = [
    "concurrency",
    "per_user_limit",
    "rate_limit",
    "min_interval_ms",
    "quotas",
];
/// What is not there yet anywhere.
const LATER: [&str; 4] = ["fairness", "adaptive", "timeout_seconds", "resources"];

/// The path of the first field that is set below a place.
fn first_field(place: &str, given: &Value) -> String {
    match given.as_object().and_then(|object| object.iter().next()) {
        Some((name, inner)) => first_field(&format!("{place}.{name}"), inner),
        None => place.to_owned(),
    }
}

/// A member of `policy` by its path, if it is there.
fn member<'a>(place: &str, given: &'a Value, name: &str) -> Option<(String, &'a Value)> {
    let member = given.get(name)?;
    Some((format!("{place}.{name}"), member))
}

/// Why `policy` of all actions or of a pack is refused.
pub(super) fn refused_in_policy(policy: &Value, scope: PolicyScope) -> Reject {
    let of_all = match scope {
        PolicyScope::Pack => "all actions of a pack",
        _ => "all actions",
    };
    for name in LIMITS.iter().chain(&["adaptive"]) {
        if let Some((place, inner)) = member("policy", policy, name) {
            let field = first_field(&place, inner);
            let words = format!(
                "`{field}` would limit {of_all} together, which is not supported yet; leave it out, or \
                 write it into the policy of each action"
            );
            return Reject::field(field, words);
        }
    }
    let field = first_field("policy", policy);
    let inner = field.strip_prefix("policy.").unwrap_or("…");
    let words = format!(
        "`{field}` has no meaning in this scope: `policy` is for limits of {of_all} together; what actions \
         inherit stands under `action_defaults` (`action_defaults.{inner}`)"
    );
    Reject::field(field, words)
}

/// What of `action_defaults` is refused with words of its own.
pub(super) fn refused_in_defaults(given: &Value) -> Option<Reject> {
    let place = "action_defaults";
    for name in LATER {
        if let Some((field, _)) = member(place, given, name) {
            return Some(not_yet(&field, "leave it out"));
        }
    }
    let concurrency = member(place, given, "concurrency");
    let inner = concurrency.iter().flat_map(|(place, inner)| {
        let limits = ["limit", "group_by", "group_limit", "cost"];
        limits.map(|name| member(place, inner, name)).into_iter()
    });
    let others = LIMITS[1..].iter().map(|name| member(place, given, name));
    let (field, _) = inner.chain(others).flatten().next()?;
    let words = format!(
        "`{field}` belongs to a limit, and limits are not inherited; write it into the policy of each action"
    );
    Some(Reject::field(field, words))
}

/// What of a user's `policy` is refused with words of its own.
pub(super) fn refused_of_user(given: &Value) -> Option<Reject> {
    let place = "policy";
    for name in LIMITS {
        if let Some((place, inner)) = member(place, given, name) {
            let field = first_field(&place, inner);
            let words = format!(
                "`{field}` would limit what a user has of all actions together, which is not supported yet; \
                 leave it out, or write `per_user_limit` into the policy of each action"
            );
            return Some(Reject::field(field, words));
        }
    }
    let others = ["queue", "retry", "fairness", "adaptive", "timeout_seconds"];
    let found = others.iter().find_map(|name| member(place, given, name));
    let (field, _) = found?;
    Some(misplaced(
        &field,
        "a document of a user has `tier` and `policy.priority.max`",
    ))
}
