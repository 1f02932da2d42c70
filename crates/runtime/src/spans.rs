//! Spans: what a process did for one execution or request, sent by OTLP to a collector.
//!
//! A span is made when it has ended, with the times when it began and ended, so that nothing is held while
//! somebody waits. It takes no time of whoever makes it: a thread of its own sends, and what a collector that is
//! slow or away does not take is dropped and counted.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use attune_core::TraceParent;
use opentelemetry::InstrumentationScope;
use opentelemetry::metrics::Meter;
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind as OtelKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanEvents, SpanExporter as Exports,
    SpanLinks, SpanProcessor as _,
};

use crate::counters::{Counter, Label};
use crate::log_pace::LogPace;

/// How many spans wait for being sent at most; a span takes some 500 bytes.
const WAITING: usize = 8_192;
/// How many are sent together at most, and how long the first waits for others.
const TOGETHER: usize = 512;
const DELAY: Duration = Duration::from_secs(1);
/// How long the last ones may take at the end of a process.
const LAST: Duration = Duration::from_secs(2);

/// Which side of a call a span is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// A request that was answered.
    Server,
    /// Something that this system did by itself.
    Internal,
}

/// Something that has been done.
#[derive(Debug)]
pub struct EndedSpan {
    /// What it is called.
    pub name: &'static str,
    /// Which side of a call it is.
    pub kind: SpanKind,
    /// Its trace, and its own id.
    pub span: TraceParent,
    /// The span above it; nothing where it is the first of its trace.
    pub parent: Option<TraceParent>,
    /// When it began.
    pub began: SystemTime,
    /// When it ended; not before it began.
    pub ended: SystemTime,
    /// What else is to be known of it.
    pub attributes: Vec<Label>,
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

/// Where spans go. A clone goes to the same place; the default one is nowhere.
#[derive(Clone, Default)]
pub struct Spans(Option<Arc<Sending>>);

/// The way to a collector.
struct Sending {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    /// How many of the requests that name no trace begin one.
    ratio: f64,
    figures: Figures,
}

/// What became of spans.
#[derive(Debug, Clone, Default)]
struct Figures {
    waiting: Arc<AtomicUsize>,
    sent: Counter,
    dropped: Counter,
}

impl fmt::Debug for Spans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = self.0.as_ref().map(|sending| &sending.figures);
        f.debug_tuple("Spans").field(&figures).finish()
    }
}

impl Spans {
    /// To this exporter.
    pub(crate) fn sending(exporter: SpanExporter, resource: &Resource, ratio: f64) -> Self {
        Self::to(exporter, resource, ratio)
    }

    fn to(exporter: impl Exports + 'static, resource: &Resource, ratio: f64) -> Self {
        let figures = Figures::default();
        let counted = Counted {
            exporter,
            figures: figures.clone(),
            log: Mutex::default(),
        };
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(WAITING)
            .with_max_export_batch_size(TOGETHER)
            .with_scheduled_delay(DELAY)
            .build();
        let mut processor = BatchSpanProcessor::new(counted, config);
        processor.set_resource(resource);
        Self(Some(Arc::new(Sending {
            processor,
            scope: InstrumentationScope::builder("attune").build(),
            ratio,
            figures,
        })))
    }

    /// Whether spans of this trace are sent from here: then whoever makes one stands above what follows.
    #[must_use]
    pub fn wants(&self, trace: &TraceParent) -> bool {
        self.0.is_some() && trace.is_sampled()
    }

    /// A span for a request: below the one that the request names, if its trace is sampled; of a trace that it
    /// begins, where it names none and chance has it.
    #[must_use]
    pub fn of_request(&self, named: Option<TraceParent>) -> Option<TraceParent> {
        let sending = self.0.as_ref()?;
        match named {
            Some(trace) if trace.is_sampled() => Some(trace.below(random_id())),
            Some(_) => None,
            None if sending.ratio > 0.0 && rand::random::<f64>() < sending.ratio => {
                TraceParent::new(rand::random(), random_id(), true)
            }
            None => None,
        }
    }

    /// Sends a span, unless nobody wants it or too many wait.
    pub fn ended(&self, span: EndedSpan) {
        let Some(sending) = self.0.as_ref().filter(|_| span.span.is_sampled()) else {
            return;
        };
        let figures = &sending.figures;
        if figures.waiting.fetch_add(1, Ordering::AcqRel) >= WAITING {
            figures.waiting.fetch_sub(1, Ordering::AcqRel);
            return figures.dropped.add(1);
        }
        sending.processor.on_end(data(span, sending.scope.clone()));
    }

    /// Shows what became of spans among the metrics, where any are sent.
    pub fn export(&self, meter: &Meter) {
        let Some(sending) = &self.0 else { return };
        let Figures { sent, dropped, .. } = &sending.figures;
        let help = "Spans that a collector has taken.";
        sent.export(meter, "traces.spans.sent.total", help);
        let help = "Spans that no collector has: it was too slow, or did not take them.";
        dropped.export(meter, "traces.spans.dropped.total", help);
    }

    /// Sends what was not sent yet, and nothing from then on. Blocks for as long as that may take.
    pub fn end(&self) {
        let Some(sending) = &self.0 else { return };
        if let Err(error) = sending.processor.shutdown_with_timeout(LAST) {
            tracing::debug!(%error, "the last spans were not sent");
        }
    }
}

/// An id of a span that is not 0.
fn random_id() -> [u8; 8] {
    rand::random::<u64>().max(1).to_be_bytes()
}

fn data(span: EndedSpan, scope: InstrumentationScope) -> SpanData {
    let id = |it: &TraceParent| SpanId::from_bytes(it.span_id());
    let context = SpanContext::new(
        TraceId::from_bytes(span.span.trace_id().0),
        id(&span.span),
        TraceFlags::SAMPLED,
        false,
        TraceState::NONE,
    );
    SpanData {
        span_context: context,
        parent_span_id: span.parent.as_ref().map_or(SpanId::INVALID, id),
        parent_span_is_remote: span.parent.is_some(),
        span_kind: match span.kind {
            SpanKind::Server => OtelKind::Server,
            SpanKind::Internal => OtelKind::Internal,
        },
        name: span.name.into(),
        start_time: span.began,
        end_time: span.ended.max(span.began),
        attributes: span.attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: match span.failed {
            Some(why) => Status::error(why),
            None => Status::Unset,
        },
        instrumentation_scope: scope,
    }
}

/// Counts what goes through an exporter.
struct Counted<E> {
    exporter: E,
    figures: Figures,
    log: Mutex<LogPace>,
}

impl<E: fmt::Debug> fmt::Debug for Counted<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.exporter.fmt(f)
    }
}

impl<E: Exports> Exports for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let exported = self.exporter.export(batch).await;
        self.figures.waiting.fetch_sub(count, Ordering::AcqRel);
        match &exported {
            Ok(()) => self.figures.sent.add(count),
            Err(error) => {
                self.figures.dropped.add(count);
                let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
                if log.is_due() {
                    let times = log.tries();
                    tracing::warn!(%error, times, spans = count, "spans are dropped: the collector does not take them");
                }
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
#[path = "spans_tests.rs"]
mod tests;
