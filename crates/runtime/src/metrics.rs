//! OpenTelemetry instruments, shown as Prometheus text and sent by OTLP: defined once for both.

use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_sdk::metrics::{Instrument, MeterProviderBuilder, SdkMeterProvider, Stream};
use prometheus::{Registry, TextEncoder};

use crate::otlp::{Otlp, OtlpError};
use crate::spans::Spans;

/// Series of one instrument, at most; beyond them the SDK adds up the rest in one series. Its
/// default of 2000 is too few for values by action. The room is reserved per instrument: 33 kB
/// touched, and 1 MB of address space.
const CARDINALITY_LIMIT: usize = 20_000;

/// Bounds of histogram buckets for durations in seconds, from half a millisecond to an hour.
pub const DURATION_SECONDS_BUCKETS: [f64; 19] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 300.0, 900.0, 3600.0,
];

/// The metrics of one process; cheap to clone, and no globals behind it.
///
/// Names come out as they are, with underscores for dots and nothing added: `queue.depth` is
/// `queue_depth`, `queue.schedule.total` is `queue_schedule_total`, and a unit shows in a name
/// only if the name says it. So a name is an API: the instruments of a crate stand in one file.
#[derive(Debug, Clone)]
pub struct Metrics {
    provider: SdkMeterProvider,
    registry: Registry,
    spans: Spans,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Without instruments.
    #[must_use]
    pub fn new() -> Self {
        Self::made(|builder| builder)
    }

    /// The same, and all values are sent by OTLP as well, by a thread of its own; and spans, where they are wanted.
    ///
    /// # Errors
    /// When nothing can be sent to such an endpoint.
    pub fn sending(otlp: &Otlp) -> Result<Self, OtlpError> {
        let (reader, resource) = (otlp.reader()?, otlp.resource());
        let spans = otlp.spans()?;
        let metrics = Self::made(|builder| builder.with_reader(reader).with_resource(resource));
        spans.export(&metrics.meter("traces"));
        Ok(Self { spans, ..metrics })
    }

    /// Where the spans of the process go.
    #[must_use]
    pub fn spans(&self) -> &Spans {
        &self.spans
    }

    fn made(extend: impl FnOnce(MeterProviderBuilder) -> MeterProviderBuilder) -> Self {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .without_counter_suffixes()
            .without_units()
            .without_target_info()
            .scope_info_enabled(false)
            .build()
            .expect("a new registry has no collector that this one could clash with");
        let builder = SdkMeterProvider::builder()
            .with_reader(exporter)
            .with_view(raise_limit);
        let provider = extend(builder).build();
        let spans = Spans::default();
        Self {
            provider,
            registry,
            spans,
        }
    }

    /// Sends what was not sent yet, and nothing from then on. Blocks for as long as that may take.
    pub fn end(&self) {
        self.spans.end();
        if let Err(error) = self.provider.shutdown() {
            tracing::debug!(%error, "the last metrics were not sent");
        }
    }

    /// Makes instruments for one part of the program, such as `executor`. The same instrument
    /// made twice is one series; in two meters its labels must differ.
    #[must_use]
    pub fn meter(&self, part: &'static str) -> Meter {
        self.provider.meter(part)
    }

    /// All values now, in the Prometheus text format (version 0.0.4).
    #[must_use]
    pub fn render(&self) -> String {
        TextEncoder::new()
            .encode_to_string(&self.registry.gather())
            .expect("the exporter makes families with a name and a value each")
    }
}

/// Keeps everything of an instrument (its histogram bounds too) but the limit of its series.
fn raise_limit(_: &Instrument) -> Option<Stream> {
    Stream::builder()
        .with_cardinality_limit(CARDINALITY_LIMIT)
        .build()
        .ok()
}

#[cfg(test)]
mod tests {
    use opentelemetry::KeyValue;

    use super::*;

    #[test]
    fn names_come_out_as_they_are() {
        let metrics = Metrics::new();
        let meter = metrics.meter("executor");
        let depth = meter
            .i64_up_down_counter("queue.depth")
            .with_unit("{execution}")
            .build();
        depth.add(3, &[]);
        depth.add(-1, &[]);
        let scheduled = meter
            .u64_counter("queue.schedule.total")
            .with_description("Granted")
            .build();
        scheduled.add(5, &[KeyValue::new("action.ref", "core.echo")]);
        meter
            .f64_gauge("queue.oldest_seconds")
            .with_unit("s")
            .build()
            .record(1.5, &[]);

        assert_eq!(
            metrics.render(),
            "# TYPE queue_depth gauge\n\
             queue_depth 2\n\
             # TYPE queue_oldest_seconds gauge\n\
             queue_oldest_seconds 1.5\n\
             # HELP queue_schedule_total Granted\n\
             # TYPE queue_schedule_total counter\n\
             queue_schedule_total{action_ref=\"core.echo\"} 5\n"
        );
    }

    #[test]
    fn histograms_keep_their_bounds_and_name() {
        let metrics = Metrics::new();
        let wait = metrics
            .meter("executor")
            .f64_histogram("queue.wait_time")
            .with_unit("s")
            .with_boundaries(DURATION_SECONDS_BUCKETS.to_vec())
            .build();
        wait.record(0.02, &[KeyValue::new("priority", "high")]);
        let text = metrics.render();
        for line in [
            "queue_wait_time_bucket{priority=\"high\",le=\"0.01\"} 0",
            "queue_wait_time_bucket{priority=\"high\",le=\"0.025\"} 1",
            "queue_wait_time_bucket{priority=\"high\",le=\"+Inf\"} 1",
            "queue_wait_time_sum{priority=\"high\"} 0.02",
            "queue_wait_time_count{priority=\"high\"} 1",
        ] {
            assert!(
                text.lines().any(|shown| shown == line),
                "{line} is missing in\n{text}"
            );
        }
        assert_eq!(
            text.matches("_bucket{").count(),
            DURATION_SECONDS_BUCKETS.len() + 1
        );
    }

    #[test]
    fn more_series_than_the_default_limit_are_kept() {
        let metrics = Metrics::new();
        let depth = metrics.meter("executor").u64_gauge("queue.depth").build();
        for action in 0..5000 {
            depth.record(1, &[KeyValue::new("action.id", action)]);
        }
        let text = metrics.render();
        assert_eq!(text.matches("queue_depth{action_id=").count(), 5000);
        assert!(!text.contains("overflow"));
    }

    #[test]
    fn two_processes_in_one_do_not_mix() {
        let (one, other) = (Metrics::new(), Metrics::new());
        one.meter("api")
            .u64_counter("requests.total")
            .build()
            .add(1, &[]);
        assert!(one.render().contains("requests_total 1"));
        assert_eq!(other.render(), "");
    }
}
