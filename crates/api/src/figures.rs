//! What the server counts.

use std::time::Duration;

use attune_runtime::Label;
use axum::http::{Method, StatusCode};

attune_runtime::counters! {
    /// What the server has answered since it started.
    pub struct ApiFigures {
        /// Requests that were answered, by route, method and status. What is no route of the server counts
        /// as `(none)`.
        requests: Family = "api.requests.total",
        /// Requests of nobody that is known (`unauthenticated`) and of somebody who may not (`forbidden`), by that.
        auth_failures: Family = "api.auth_failures.total",
        /// Requests that were refused because a key had asked too often, or an address had shown too many keys
        /// that are not good, by route.
        rate_limited: Family = "api.rate_limited.total",
        /// How long it took until the head of the answer was ready, by route and method.
        answered_after: Timing = "api.request_seconds",
    }
}

impl ApiFigures {
    /// A request was answered.
    pub(crate) fn answered(
        &self,
        route: String,
        method: &Method,
        status: StatusCode,
        after: Duration,
    ) {
        let method = Label::new("method", word(method));
        let route = Label::new("route", route);
        self.answered_after
            .record_as(after, &[route.clone(), method.clone()]);
        let status = Label::new("status", i64::from(status.as_u16()));
        self.requests.add(1, &[route, method, status]);
    }
}

impl ApiFigures {
    /// Shows what was not seen yet as none: an alert that asks for its rate has to know what there was before.
    pub(crate) fn begin(&self) {
        for reason in ["unauthenticated", "forbidden"] {
            self.auth_failures.add(0, &[Label::new("reason", reason)]);
        }
    }

    /// A request was answered with an error of this code.
    pub(crate) fn refused(&self, route: &str, code: &str) {
        let reason = match code {
            "UNAUTHENTICATED" => "unauthenticated",
            "FORBIDDEN" => "forbidden",
            "RATE_LIMITED" => {
                let route = Label::new("route", route.to_owned());
                return self.rate_limited.add(1, &[route]);
            }
            _ => return,
        };
        self.auth_failures.add(1, &[Label::new("reason", reason)]);
    }
}

/// Anybody may send a method of any name, and each would be a series.
fn word(method: &Method) -> &'static str {
    let known = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::PATCH,
        Method::DELETE,
        Method::OPTIONS,
    ];
    let words = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    let place = known.iter().position(|known| known == method);
    place.map_or("(other)", |place| words[place])
}

#[cfg(test)]
mod tests {
    use attune_runtime::Metrics;

    use super::*;

    #[test]
    fn a_method_that_nobody_knows_makes_no_series_of_its_own() {
        let (metrics, figures) = (Metrics::new(), ApiFigures::default());
        figures.export(&metrics.meter("api"));
        for name in ["GET", "BREW", "STIR"] {
            let method = Method::from_bytes(name.as_bytes()).unwrap();
            let route = "/healthz".to_owned();
            figures.answered(route, &method, StatusCode::OK, Duration::ZERO);
        }
        let text = metrics.render();
        for line in [
            "api_requests_total{method=\"GET\",route=\"/healthz\",status=\"200\"} 1",
            "api_requests_total{method=\"(other)\",route=\"/healthz\",status=\"200\"} 2",
            "api_request_seconds_count{method=\"GET\",route=\"/healthz\"} 1",
        ] {
            assert!(text.contains(line), "{line}:\n{text}");
        }
    }
}
