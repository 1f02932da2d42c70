//! Which permission each endpoint needs. What does not stand here is allowed to nobody.

use attune_identity::Permission;
use axum::http::Method;

/// What a request must be allowed to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: whoever can reach the server may ask.
    Nothing,
    /// One of these.
    AnyOf(&'static [Permission]),
}

/// To which rate a request counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Executions asked for; an array counts as many as it has.
    Submit,
    /// Questions.
    Read,
    /// Changes.
    Change,
    /// Workers, who are paced by what they are given.
    Work,
}

use Need::{AnyOf, Nothing};
use Permission as P;

const READ: Need = AnyOf(&[P::Read]);
const READ_OWN: Need = AnyOf(&[P::Read, P::ReadOwn]);
const OPERATE: Need = AnyOf(&[P::Operate]);
const LIMIT: Need = AnyOf(&[P::Limit]);
const ADMINISTER: Need = AnyOf(&[P::Administer]);
const LETTERS: Need = AnyOf(&[P::Letters]);
const WORK: Need = AnyOf(&[P::Work]);
const KEYS: Need = AnyOf(&[P::Keys]);
const SUBMIT: Need = AnyOf(&[P::Submit]);

/// Every endpoint: method, path, what it needs. A handler looks further where only one's own is meant, or the
/// actions and pools of the key.
pub(crate) const ENDPOINTS: &[(&str, &str, Need)] = &[
    ("GET", "/healthz", Nothing),
    ("GET", "/readyz", Nothing),
    ("GET", "/docs", Nothing),
    ("GET", "/api/v1/openapi.json", Nothing),
    ("GET", "/metrics", AnyOf(&[P::Metrics])),
    ("GET", "/api/v1/executions", READ_OWN),
    ("POST", "/api/v1/executions", SUBMIT),
    ("GET", "/api/v1/executions/{id}", READ_OWN),
    (
        "POST",
        "/api/v1/executions/{id}/cancel",
        AnyOf(&[P::Operate, P::CancelOwn]),
    ),
    ("GET", "/api/v1/executions/{id}/explain", READ_OWN),
    ("POST", "/api/v1/executions/{id}/resubmit", SUBMIT),
    ("POST", "/api/v1/executions/{id}/release", OPERATE),
    ("GET", "/api/v1/events", READ),
    ("GET", "/api/v1/actions", READ),
    ("GET", "/api/v1/actions/{ref}", READ_OWN),
    ("PUT", "/api/v1/actions/{ref}", AnyOf(&[P::Author])),
    ("GET", "/api/v1/actions/{ref}/queue-stats", READ_OWN),
    ("GET", "/api/v1/actions/{ref}/holders", READ),
    ("GET", "/api/v1/queue-stats", READ),
    ("GET", "/api/v1/pauses", READ),
    ("PUT", "/api/v1/pauses/all", OPERATE),
    ("DELETE", "/api/v1/pauses/all", OPERATE),
    ("PUT", "/api/v1/pauses/{scope}/{target}", OPERATE),
    ("DELETE", "/api/v1/pauses/{scope}/{target}", OPERATE),
    ("GET", "/api/v1/policies", READ),
    ("POST", "/api/v1/policies", LIMIT),
    ("GET", "/api/v1/policies/global", READ),
    ("PUT", "/api/v1/policies/global", LIMIT),
    ("DELETE", "/api/v1/policies/global", LIMIT),
    ("GET", "/api/v1/policies/global/versions", READ),
    ("GET", "/api/v1/policies/{scope}/{target}", READ),
    ("PUT", "/api/v1/policies/{scope}/{target}", LIMIT),
    ("DELETE", "/api/v1/policies/{scope}/{target}", LIMIT),
    ("GET", "/api/v1/policies/{scope}/{target}/versions", READ),
    ("GET", "/api/v1/operations", READ),
    ("POST", "/api/v1/operations", OPERATE),
    ("POST", "/api/v1/operations/preview", OPERATE),
    ("GET", "/api/v1/operations/{id}", READ),
    ("GET", "/api/v1/admin/executions/", ADMINISTER),
    ("GET", "/api/v1/admin/executions/queue", ADMINISTER),
    ("PUT", "/api/v1/admin/executions/{id}/priority", ADMINISTER),
    ("GET", "/api/v1/cluster", READ),
    ("GET", "/api/v1/audit-log", AnyOf(&[P::Audit])),
    ("GET", "/api/v1/audit-log/check", AnyOf(&[P::Audit])),
    ("GET", "/api/v1/dead-letters", LETTERS),
    ("GET", "/api/v1/dead-letters/{id}", LETTERS),
    ("POST", "/api/v1/dead-letters/{id}/requeue", LETTERS),
    ("POST", "/api/v1/worker/lease", WORK),
    ("POST", "/api/v1/worker/retire", WORK),
    ("POST", "/api/v1/worker/exchange", WORK),
    ("GET", "/api/v1/keys", KEYS),
    ("POST", "/api/v1/keys", KEYS),
    ("POST", "/api/v1/keys/{id}/rotate", KEYS),
    ("DELETE", "/api/v1/keys/{id}", KEYS),
];

/// What an endpoint needs, by its method and the path as the router has it; `None` when it does not stand here.
pub(crate) fn find(method: &Method, path: &str) -> Option<Need> {
    let method = match *method {
        Method::HEAD => "GET",
        ref method => method.as_str(),
    };
    let found = ENDPOINTS.iter().find(|it| (it.0, it.1) == (method, path));
    found.map(|(_, _, need)| *need)
}

/// To which rate a request counts.
pub(crate) fn class(method: &Method, need: Need) -> Class {
    match need {
        SUBMIT => Class::Submit,
        WORK => Class::Work,
        _ if method.is_safe() => Class::Read,
        _ => Class::Change,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_stands_here_once() {
        for (index, (method, path, _)) in ENDPOINTS.iter().enumerate() {
            let same = |other: &&(&str, &str, Need)| (other.0, other.1) == (*method, *path);
            assert_eq!(ENDPOINTS.iter().filter(same).count(), 1, "{method} {path}");
            let method: Method = method.parse().unwrap();
            assert_eq!(find(&method, path), Some(ENDPOINTS[index].2));
        }
        assert_eq!(find(&Method::HEAD, "/healthz"), Some(Nothing));
        assert_eq!(find(&Method::PUT, "/healthz"), None);
        assert_eq!(find(&Method::GET, "/api/v1/secrets"), None);
    }

    #[test]
    fn only_what_tells_nothing_is_open() {
        let open: Vec<_> = ENDPOINTS
            .iter()
            .filter(|(_, _, need)| *need == Nothing)
            .map(|(_, path, _)| *path)
            .collect();
        assert_eq!(
            open,
            ["/healthz", "/readyz", "/docs", "/api/v1/openapi.json"]
        );
    }
}
