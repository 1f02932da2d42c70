//! Sending metrics and spans by OTLP (protobuf over HTTP) to a collector.
//!
//! Threads of their own send, so that a collector that is slow or away holds up nobody; what it does not
//! take is dropped, and the log says so. Further headers, such as a token, come from the environment
//! (`OTEL_EXPORTER_OTLP_HEADERS`), where the libraries of all languages look for them.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{ExporterBuildError, MetricExporter, SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::PeriodicReader;

use crate::spans::Spans;

/// How long the collector has for one answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where to send to, and as whom.
#[derive(Debug, Clone)]
pub struct Otlp {
    /// The URL below which a collector has `/v1/metrics` and `/v1/traces`.
    pub endpoint: String,
    /// How often metrics are sent.
    pub interval: Duration,
    /// Whether spans are sent as well, and then how many of the requests that name no trace begin one: from 0
    /// to 1.
    pub traces: Option<f64>,
    /// The role of the process.
    pub role: &'static str,
    /// Which of those that have this role.
    pub instance: String,
}

/// Nothing can be sent by OTLP.
#[derive(Debug, thiserror::Error)]
#[error("otlp.endpoint {endpoint} cannot be used")]
pub struct OtlpError {
    endpoint: String,
    source: ExporterBuildError,
}

impl Otlp {
    /// The address for one kind of signals, such as `metrics`.
    fn address(&self, signals: &str) -> String {
        format!("{}/v1/{signals}", self.endpoint.trim_end_matches('/'))
    }

    fn refused(&self, source: ExporterBuildError) -> OtlpError {
        OtlpError {
            endpoint: self.endpoint.clone(),
            source,
        }
    }

    /// What is said of the process beside each value.
    pub(crate) fn resource(&self) -> Resource {
        Resource::builder_empty()
            .with_attributes([
                KeyValue::new("service.namespace", "attune"),
                KeyValue::new("service.name", format!("attune-{}", self.role)),
                KeyValue::new("service.instance.id", self.instance.clone()),
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            ])
            .build()
    }

    /// Where spans go: nowhere unless they are wanted.
    pub(crate) fn spans(&self) -> Result<Spans, OtlpError> {
        let Some(ratio) = self.traces else {
            return Ok(Spans::default());
        };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_endpoint(self.address("traces"))
            .with_timeout(TIMEOUT)
            .build()
            .map_err(|error| self.refused(error))?;
        Ok(Spans::sending(exporter, &self.resource(), ratio))
    }

    /// Reads all metrics now and then, and sends them.
    pub(crate) fn reader(&self) -> Result<PeriodicReader<MetricExporter>, OtlpError> {
        let exporter = MetricExporter::builder()
            .with_http()
            .with_endpoint(self.address("metrics"))
            .with_timeout(TIMEOUT)
            .build()
            .map_err(|error| self.refused(error))?;
        let reader = PeriodicReader::builder(exporter);
        Ok(reader.with_interval(self.interval).build())
    }
}

// A file, as tests of other crates take it from the testkit, which is made of more than this crate may use.
#[cfg(test)]
#[path = "../../testkit/src/collector.rs"]
#[expect(unreachable_pub, reason = "it is public where it comes from")]
mod collector;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::collector::Collector;
    use crate::{EndedSpan, Label, Metrics, SpanKind};

    fn holds(body: &[u8], text: &str) -> bool {
        body.windows(text.len()).any(|part| part == text.as_bytes())
    }

    #[test]
    fn what_is_shown_is_sent_under_its_own_name_and_with_who_says_it() {
        // The client wants one, also where it does not need it.
        drop(rustls::crypto::ring::default_provider().install_default());
        let Collector { endpoint, taken } = Collector::start().unwrap();
        let otlp = Otlp {
            endpoint,
            interval: Duration::from_secs(3600),
            traces: None,
            role: "executor",
            instance: "first".to_owned(),
        };
        let metrics = Metrics::sending(&otlp).unwrap();
        let counter = metrics
            .meter("test")
            .u64_counter("queue.schedule.total")
            .build();
        counter.add(3, &[Label::new("action", "core.echo")]);
        assert!(
            metrics
                .render()
                .contains("queue_schedule_total{action=\"core.echo\"} 3")
        );
        // The last values are sent at the end, however long the interval is.
        metrics.end();
        let (head, body) = taken.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(head.starts_with("post /v1/metrics http/1.1"), "{head}");
        assert!(
            head.contains("content-type: application/x-protobuf"),
            "{head}"
        );
        for text in [
            "queue.schedule.total",
            "core.echo",
            "attune-executor",
            "first",
        ] {
            assert!(holds(&body, text), "{text} was not sent");
        }
    }

    #[test]
    fn spans_are_sent_where_they_are_wanted() {
        drop(rustls::crypto::ring::default_provider().install_default());
        let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parent = attune_core::TraceParent::parse(trace).unwrap();
        for wanted in [true, false] {
            let collector = Collector::start().unwrap();
            let metrics = Metrics::sending(&Otlp {
                endpoint: collector.endpoint.clone(),
                interval: Duration::from_secs(3600),
                traces: wanted.then_some(0.0),
                role: "worker",
                instance: "here".to_owned(),
            })
            .unwrap();
            let began = std::time::SystemTime::UNIX_EPOCH + Duration::from_nanos(7);
            metrics.spans().ended(EndedSpan {
                name: "run",
                kind: SpanKind::Internal,
                span: parent.below([0xab; 8]),
                parent: Some(parent),
                began,
                ended: began + Duration::from_nanos(1),
                attributes: vec![
                    Label::new("attune.action.ref", "core.echo"),
                    Label::new("attune.attempt", 300),
                ],
                failed: None,
            });
            metrics.spans().end();
            let figures = metrics.render();
            metrics.end();
            let spans = collector.spans();
            if !wanted {
                assert_eq!(spans, []);
                continue;
            }
            let [span] = &spans[..] else {
                panic!("{spans:?}")
            };
            assert_eq!((span.name.as_str(), span.times), ("run", (7, 8)));
            assert_eq!(span.trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
            assert_eq!(span.span_id, "ab".repeat(8));
            assert_eq!(span.parent_id, "00f067aa0ba902b7");
            assert_eq!(span.attribute("attune.action.ref"), "core.echo");
            assert_eq!(span.attribute("attune.attempt"), "300");
            assert!(figures.contains("traces_spans_sent_total 1"));
        }
    }

    #[test]
    fn an_endpoint_that_is_none_is_told() {
        let otlp = Otlp {
            endpoint: "http://a b".to_owned(),
            interval: Duration::from_secs(1),
            traces: None,
            role: "api",
            instance: "here".to_owned(),
        };
        let error = Metrics::sending(&otlp).unwrap_err();
        let said = error.to_string();
        assert_eq!(said, "otlp.endpoint http://a b cannot be used");
    }
}
