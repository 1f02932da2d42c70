//! Sending metrics by OTLP (protobuf over HTTP) to a collector.
//!
//! Threads of their own send, so that a collector that is slow or away holds up nobody; what it does not
//! take is dropped, and the log says so. Further headers, such as a token, come from the environment
//! (`OTEL_EXPORTER_OTLP_HEADERS`), where the libraries of all languages look for them.

use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_otlp::{ExporterBuildError, MetricExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::PeriodicReader;

/// How long the collector has for one answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where to send to, and as whom.
#[derive(Debug, Clone)]
pub struct Otlp {
    /// The URL below which a collector has `/v1/metrics`.
    pub endpoint: String,
    /// How often metrics are sent.
    pub interval: Duration,
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;

    use super::*;
    use crate::{Label, Metrics};

    /// A collector that takes one request and gives it to the test: its head and its body.
    fn collector() -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}/", listener.local_addr().unwrap());
        let (sender, taken) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                sender.send(request(&mut stream.unwrap())).ok();
            }
        });
        (endpoint, taken)
    }

    fn request(stream: &mut TcpStream) -> (String, Vec<u8>) {
        let mut read = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let count = stream.read(&mut buffer).unwrap();
            read.extend_from_slice(&buffer[..count]);
            let end = read.windows(4).position(|four| four == b"\r\n\r\n");
            let Some(end) = end else { continue };
            let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
            let length = head
                .lines()
                .find_map(|it| it.strip_prefix("content-length: "));
            let length: usize = length.unwrap().parse().unwrap();
            let body = &read[end + 4..];
            if body.len() >= length {
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                stream.write_all(answer).unwrap();
                return (head, body.to_vec());
            }
        }
    }

    fn holds(body: &[u8], text: &str) -> bool {
        body.windows(text.len()).any(|part| part == text.as_bytes())
    }

    #[test]
    fn what_is_shown_is_sent_under_its_own_name_and_with_who_says_it() {
        // The client wants one, also where it does not need it.
        drop(rustls::crypto::ring::default_provider().install_default());
        let (endpoint, taken) = collector();
        let otlp = Otlp {
            endpoint,
            interval: Duration::from_secs(3600),
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
    fn an_endpoint_that_is_none_is_told() {
        let otlp = Otlp {
            endpoint: "http://a b".to_owned(),
            interval: Duration::from_secs(1),
            role: "api",
            instance: "here".to_owned(),
        };
        let error = Metrics::sending(&otlp).unwrap_err();
        let said = error.to_string();
        assert_eq!(said, "otlp.endpoint http://a b cannot be used");
    }
}
