//! Figures that a part of the program keeps and that `/metrics` shows.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter as Instrument, Histogram, HistogramBuilder, Meter};

use crate::metrics::DURATION_SECONDS_BUCKETS;

/// A number that only rises, from 0 at the start. A clone is the same number.
#[derive(Debug, Clone, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Its value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts so many more.
    pub fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Shows it among the metrics; [`counters!`](crate::counters) does.
    pub fn export(&self, meter: &Meter, name: &'static str, description: &str) {
        let counter = self.clone();
        Self::show(meter, name, description, move || counter.get());
    }

    /// Shows a number that is kept elsewhere and that `read` answers.
    pub fn show(
        meter: &Meter,
        name: &'static str,
        description: &str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        meter
            .u64_observable_counter(name)
            .with_description(description.to_owned())
            .with_callback(move |observer| observer.observe(read(), &[]))
            .build();
    }

    /// The same of several numbers of one kind, each with its labels. Who makes them bounds how many there
    /// may be.
    pub fn show_all<Values>(
        meter: &Meter,
        name: &'static str,
        description: &str,
        read: impl Fn() -> Values + Send + Sync + 'static,
    ) where
        Values: IntoIterator<Item = (f64, Vec<Label>)>,
    {
        meter
            .f64_observable_counter(name)
            .with_description(description.to_owned())
            .with_callback(move |observer| {
                for (value, labels) in read() {
                    observer.observe(value, &labels);
                }
            })
            .build();
    }
}

/// A number that rises and falls. A clone is the same number.
#[derive(Debug, Clone, Default)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// Its value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Its new value.
    pub fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    /// One more.
    pub fn raise(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// One less, of those that were raised.
    pub fn lower(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Shows it among the metrics; [`counters!`](crate::counters) does.
    pub fn export(&self, meter: &Meter, name: &'static str, description: &str) {
        let gauge = self.clone();
        Self::show(meter, name, description, move || Some(gauge.get() as f64));
    }

    /// Shows a number that is kept elsewhere and that `read` answers; nothing while that is `None`.
    pub fn show(
        meter: &Meter,
        name: &'static str,
        description: &str,
        read: impl Fn() -> Option<f64> + Send + Sync + 'static,
    ) {
        let read = move || read().map(|value| (value, Vec::new()));
        Self::show_all(meter, name, description, read);
    }

    /// The same of several numbers of one kind, each with its labels. Who makes them bounds how many there
    /// may be.
    pub fn show_all<Values>(
        meter: &Meter,
        name: &'static str,
        description: &str,
        read: impl Fn() -> Values + Send + Sync + 'static,
    ) where
        Values: IntoIterator<Item = (f64, Vec<Label>)>,
    {
        meter
            .f64_observable_gauge(name)
            .with_description(description.to_owned())
            .with_callback(move |observer| {
                for (value, labels) in read() {
                    observer.observe(value, &labels);
                }
            })
            .build();
    }
}

/// The name of a label and its value.
pub type Label = KeyValue;

/// Counters of one kind, told apart by labels whose values are few. They count from when they are shown
/// among the metrics: nobody reads them otherwise. A clone is the same family.
#[derive(Debug, Clone, Default)]
pub struct Family(Arc<OnceLock<Instrument<u64>>>);

impl Family {
    /// Counts so many more of the one with these labels; 0 makes it show.
    pub fn add(&self, count: usize, labels: &[Label]) {
        if let Some(instrument) = self.0.get() {
            instrument.add(count as u64, labels);
        }
    }

    /// Shows them among the metrics; [`counters!`](crate::counters) does.
    pub fn export(&self, meter: &Meter, name: &'static str, description: &str) {
        let instrument = meter.u64_counter(name);
        let instrument = instrument.with_description(description.to_owned()).build();
        self.0.get_or_init(|| instrument);
    }
}

/// How long things take, in buckets of seconds; likewise, as [`Family`] does.
#[derive(Debug, Clone, Default)]
pub struct Timing(Arc<OnceLock<Histogram<f64>>>);

impl Timing {
    /// One of them took so long.
    pub fn record(&self, took: Duration) {
        self.record_as(took, &[]);
    }

    /// The same, of the kind that these labels name.
    pub fn record_as(&self, took: Duration, labels: &[Label]) {
        if let Some(histogram) = self.0.get() {
            histogram.record(took.as_secs_f64(), labels);
        }
    }

    /// Shows them among the metrics; [`counters!`](crate::counters) does.
    pub fn export(&self, meter: &Meter, name: &'static str, description: &str) {
        let bounds = DURATION_SECONDS_BUCKETS.to_vec();
        show_buckets(
            &self.0,
            meter.f64_histogram(name).with_unit("s"),
            bounds,
            description,
        );
    }
}

/// How many things come at once, in buckets; likewise.
#[derive(Debug, Clone, Default)]
pub struct Sizes(Arc<OnceLock<Histogram<f64>>>);

impl Sizes {
    /// Bounds of the buckets.
    const BUCKETS: [f64; 12] = [
        1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0, 2_000.0, 5_000.0,
    ];

    /// So many came.
    pub fn record(&self, count: usize) {
        if let Some(histogram) = self.0.get() {
            histogram.record(count as f64, &[]);
        }
    }

    /// Shows them among the metrics; [`counters!`](crate::counters) does.
    pub fn export(&self, meter: &Meter, name: &'static str, description: &str) {
        let bounds = Self::BUCKETS.to_vec();
        show_buckets(&self.0, meter.f64_histogram(name), bounds, description);
    }
}

fn show_buckets(
    place: &OnceLock<Histogram<f64>>,
    histogram: HistogramBuilder<'_, Histogram<f64>>,
    bounds: Vec<f64>,
    description: &str,
) {
    let histogram = histogram.with_boundaries(bounds);
    let histogram = histogram.with_description(description.to_owned()).build();
    place.get_or_init(|| histogram);
}

/// Declares the figures of a part of the program: a struct of [`Counter`]s, [`Gauge`]s, [`Family`]s,
/// [`Timing`]s and [`Sizes`] and, in one place with them, the names under which `/metrics` and
/// `otlp.endpoint` show them. What the documentation of a
/// field says is shown there too.
///
/// The struct has `Default` and `export`. Counting needs no metrics, so that a part counts in its
/// tests as it does in a daemon, which exports what the running part has:
///
/// ```
/// use std::sync::Arc;
///
/// attune_runtime::counters! {
///     /// What an executor has done since it started, and what it is doing.
///     pub struct ExecutorCounters {
///         /// Executions accepted.
///         accepted: Counter = "queue.enqueue.total",
///         /// Slots granted.
///         granted: Counter = "queue.schedule.total",
///         /// Partitions owned.
///         owned: Gauge = "executor.partitions.owned",
///     }
/// }
///
/// /// What decides without any I/O names what is to be counted; whoever drives it counts.
/// enum Counted {
///     Accepted,
///     Granted,
/// }
///
/// impl ExecutorCounters {
///     fn count(&self, counted: Counted) {
///         match counted {
///             Counted::Accepted => &self.accepted,
///             Counted::Granted => &self.granted,
///         }
///         .add(1);
///     }
/// }
///
/// let counters = Arc::new(ExecutorCounters::default());
/// let metrics = attune_runtime::Metrics::new();
/// counters.export(&metrics.meter("executor"));
/// counters.count(Counted::Accepted);
/// counters.count(Counted::Granted);
/// counters.owned.set(16);
/// assert!(metrics.render().contains("queue_enqueue_total Executions accepted.\n"));
/// assert!(metrics.render().contains("queue_enqueue_total 1\n"));
/// assert!(metrics.render().contains("executor_partitions_owned 16\n"));
/// ```
#[macro_export]
macro_rules! counters {
    (
        $(#[$meta:meta])*
        $visible:vis struct $name:ident {
            $( $(#[doc = $doc:literal])+ $field:ident: $kind:ident = $metric:literal ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Default)]
        $visible struct $name {
            $( $(#[doc = $doc])+ pub $field: $crate::$kind, )+
        }

        impl $name {
            /// Shows all of these figures, as they are at each look, among the metrics.
            $visible fn export(&self, meter: &$crate::Meter) {
                $(
                    let help = ::std::concat!($($doc),+).trim_start();
                    self.$field.export(meter, $metric, help);
                )+
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::{Gauge, Label, Metrics};

    counters! {
        /// For the test.
        struct Figures {
            /// Things that were done,
            /// however long they took.
            done: Counter = "test.done.total",
                /// Things that are being done.
            busy: Gauge = "test.busy",
            /// Things that were sent, by way.
            sent: Family = "test.sent.total",
            /// How long it took.
            took: Timing = "test.seconds",
            /// How many at once.
            together: Sizes = "test.items",
        }
    }

    /// What is told apart by labels, or in buckets, shows from its first value on.
    #[test]
    fn labels_and_buckets_are_shown_as_well() {
        let (metrics, figures) = (Metrics::new(), Figures::default());
        figures.sent.add(9, &[]);
        figures.took.record(Duration::from_secs(9));
        figures.export(&metrics.meter("test"));
        figures.sent.add(2, &[Label::new("way", "post")]);
        figures.took.record(Duration::from_millis(20));
        figures.together.record(3);
        let text = metrics.render();
        for line in [
            "# HELP test_sent_total Things that were sent, by way.",
            "test_sent_total{way=\"post\"} 2",
            "test_seconds_bucket{le=\"0.01\"} 0",
            "test_seconds_bucket{le=\"0.025\"} 1",
            "test_seconds_sum 0.02",
            "test_items_bucket{le=\"2\"} 0",
            "test_items_bucket{le=\"5\"} 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}:\n{text}");
        }
    }

    /// An alert on a value that nobody tells any more would never end.
    #[test]
    fn what_is_not_told_any_more_is_gone() {
        let (metrics, round) = (Metrics::new(), Gauge::default());
        let told = round.clone();
        let meter = metrics.meter("test");
        Gauge::show_all(&meter, "test.waits", "Who waits.", move || {
            let why = if told.get() == 0 { "limit" } else { "worker" };
            [(2.0, vec![Label::new("for", why)])]
        });
        assert!(metrics.render().contains("test_waits{for=\"limit\"} 2\n"));
        round.set(1);
        let text = metrics.render();
        assert!(text.contains("test_waits{for=\"worker\"} 2\n"), "{text}");
        assert!(!text.contains("limit"), "{text}");
    }

    #[test]
    fn what_is_counted_is_shown_with_its_words() {
        let (metrics, figures) = (Metrics::new(), Arc::new(Figures::default()));
        figures.done.add(2);
        figures.export(&metrics.meter("test"));
        figures.done.add(3);
        figures.busy.set(7);
        figures.busy.set(4);
        assert_eq!(
            metrics.render(),
            "# HELP test_busy Things that are being done.\n\
             # TYPE test_busy gauge\n\
             test_busy 4\n\
             # HELP test_done_total Things that were done, however long they took.\n\
             # TYPE test_done_total counter\n\
             test_done_total 5\n"
        );
        assert_eq!((figures.done.get(), figures.busy.get()), (5, 4));
    }
}
