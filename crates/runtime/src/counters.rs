//! Figures that a part of the program keeps and that `/metrics` shows.

use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry::metrics::Meter;

/// A number that only rises, from 0 at the start.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts so many more.
    pub fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Shows the number that `read` answers as a counter; [`counters!`](crate::counters) does.
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
}

/// A number that rises and falls.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Its value now.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Its new value.
    pub fn set(&self, value: usize) {
        self.0.store(value as u64, Ordering::Relaxed);
    }

    /// Shows the number that `read` answers as a gauge; [`counters!`](crate::counters) does.
    pub fn show(
        meter: &Meter,
        name: &'static str,
        description: &str,
        read: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        meter
            .u64_observable_gauge(name)
            .with_description(description.to_owned())
            .with_callback(move |observer| observer.observe(read(), &[]))
            .build();
    }
}

/// Declares the figures of a part of the program: a struct of [`Counter`]s and [`Gauge`]s and, in
/// one place with them, the names under which `/metrics` shows them. What the documentation of a
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
            $visible fn export(self: &::std::sync::Arc<Self>, meter: &$crate::Meter) {
                $(
                    let figures = ::std::sync::Arc::clone(self);
                    $crate::$kind::show(
                        meter,
                        $metric,
                        ::std::concat!($($doc),+).trim_start(),
                        move || figures.$field.get(),
                    );
                )+
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::Metrics;

    counters! {
        /// For the test.
        struct Figures {
            /// Things that were done,
            /// however long they took.
            done: Counter = "test.done.total",
            /// Things that are being done.
            busy: Gauge = "test.busy",
        }
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
