//! The collector of metrics and spans: whether it answers, and takes what is sent.

use std::time::Duration;

use attune_config::redact_urls;
use attune_runtime::error_chain;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::finding::Findings;
use super::pages::OTLP;
use super::{PATIENCE, Patient};

/// Where tokens for a collector are, as everywhere with OTLP.
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// Sends it nothing, which changes nothing there. Nothing where the settings name none.
pub(super) async fn look(patient: &Patient) -> Option<Findings> {
    let otlp = &patient.settings.otlp;
    let endpoint = otlp.endpoint.as_ref()?.expose().trim_end_matches('/');
    let mut found = Findings::of("collector");
    let client = reqwest::Client::builder().timeout(less(PATIENCE)).build();
    let client = match client {
        Ok(client) => client,
        Err(error) => {
            found.skip(
                "metrics",
                format!("nothing can be sent: {}", error_chain(&error)),
            );
            return Some(found);
        }
    };
    let spans = otlp.traces.then_some("traces");
    for signals in ["metrics"].into_iter().chain(spans) {
        send(&client, endpoint, signals, &mut found).await;
    }
    Some(found)
}

/// So that the reason is heard before everybody stops to wait.
fn less(patience: Duration) -> Duration {
    patience.mul_f32(0.8)
}

async fn send(
    client: &reqwest::Client,
    endpoint: &str,
    signals: &'static str,
    found: &mut Findings,
) {
    let url = format!("{endpoint}/v1/{signals}");
    let place = redact_urls(&url);
    let named = std::env::var(HEADERS).unwrap_or_default();
    // A message of no fields is one that has nothing in it.
    let request = client.post(&url).headers(headers(&named)).body(Vec::new());
    let answer = request
        .header(CONTENT_TYPE, "application/x-protobuf")
        .header(CONTENT_LENGTH, "0")
        .send()
        .await;
    let (says, advice) = match answer {
        Ok(answer) if answer.status().is_success() => {
            return found.ok(signals, format!("{place} takes them"));
        }
        Ok(answer) => {
            let status = answer.status();
            let advice = match status.as_u16() {
                401 | 403 => "put its token into OTEL_EXPORTER_OTLP_HEADERS of each process",
                404 | 405 => {
                    "let otlp.endpoint be the URL before /v1/metrics, of a receiver of OTLP over HTTP (often port 4318)"
                }
                _ => "see the log of the collector",
            };
            (format!("{place} answers {status}"), advice)
        }
        Err(error) if error.is_timeout() => (
            format!(
                "{place} does not answer within {} s",
                less(PATIENCE).as_secs()
            ),
            "look whether the collector hangs, or a firewall drops what is sent to it",
        ),
        Err(error) => (
            // It has the URL in it, which may have a password.
            format!(
                "{place} cannot be reached: {}",
                error_chain(&error.without_url())
            ),
            "start the collector, or mend otlp.endpoint: what it does not take is dropped",
        ),
    };
    found.warn(signals, says, (advice, OTLP));
}

/// The headers that a variable names, as in `name=value,other=value`. What is none is left out, as whoever sends does.
fn headers(named: &str) -> HeaderMap {
    let pairs = named.split(',').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
        let mut value = HeaderValue::from_str(value.trim()).ok()?;
        value.set_sensitive(true);
        Some((name, value))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_whoever_sends_reads_them() {
        let read = headers("authorization=Bearer abc, x-tenant = blue ,nonsense,=,a b=c");
        assert_eq!(read.len(), 2, "{read:?}");
        assert_eq!(read["authorization"], "Bearer abc");
        assert_eq!(read["x-tenant"], "blue");
    }
}
