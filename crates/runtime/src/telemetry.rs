//! Logging: to stderr, as text for people or JSON for machines.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal};
use std::panic::PanicHookInfo;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use attune_config::LogFormat;
use opentelemetry::metrics::Meter;
use tracing::Subscriber;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt;

use crate::counters::Counter;
use crate::log_lines::{Form, Lines};
use crate::log_repeats::Repeats;

/// So many lines wait at most for whoever reads the log: a megabyte as a rule, 64 where all are as long
/// as a line may be.
const LINES_WAITING: usize = 4_000;
/// How long the end of a process waits for its last lines to be read.
const LAST_LINES: Duration = Duration::from_millis(1_200);

/// Why logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The setting `log.level` is not a filter.
    #[error("log.level {level:?} is not a list of log levels such as info,attune_executor=debug")]
    Level {
        /// The value of the setting.
        level: String,
        /// What the filter's parser says.
        source: tracing_subscriber::filter::ParseError,
    },
    /// There is a logger already.
    #[error("logging was started twice")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

/// The log of a process. When it is dropped, what was logged is written, as far as somebody reads
/// it within a second.
#[must_use = "without it nothing is written any more"]
#[derive(Debug)]
pub struct Log {
    writing: Option<WorkerGuard>,
    lost: ErrorCounter,
    left_out: Counter,
}

/// Who logs.
#[derive(Debug, Clone)]
pub struct Service {
    /// Its role.
    pub name: String,
    /// Which of those that have this role.
    pub instance: String,
}

impl Service {
    /// What each line of JSON begins with, behind its bracket.
    fn fields(&self) -> String {
        let fields = serde_json::json!({
            "service": self.name,
            "instance": self.instance,
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
        });
        let fields = fields.to_string();
        let fields = fields.trim_start_matches('{').trim_end_matches('}');
        format!("{fields},")
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let writing = self.writing.take();
        let (done, is_done) = mpsc::channel();
        // Beside this thread: where too many lines wait, the end of the log is told on stdout, which
        // may be as full as the log.
        let ending = thread::Builder::new().spawn(move || {
            drop(writing);
            done.send(()).ok();
        });
        if ending.is_ok() {
            is_done.recv_timeout(LAST_LINES).ok();
        }
    }
}

impl Log {
    /// Lines go to a thread that writes them, so that a log that nobody reads (a stopped pager, a
    /// collector that hangs) holds up nobody: once it is too far behind, lines are lost.
    fn start(left_out: Counter) -> (NonBlocking, Self) {
        let (writer, writing) = NonBlockingBuilder::default()
            .buffered_lines_limit(LINES_WAITING)
            .lossy(true)
            .thread_name("attune-log")
            .finish(io::stderr());
        let lost = writer.error_counter();
        (
            writer,
            Self {
                writing: Some(writing),
                lost,
                left_out,
            },
        )
    }

    /// Shows how many lines were lost, and how many were left out.
    pub fn export(&self, meter: &Meter) {
        let lost = self.lost.clone();
        let description = "Lines of the log that were dropped, because nobody read it fast enough.";
        Counter::show(meter, "log_lines_lost_total", description, move || {
            lost.dropped_lines() as u64
        });
        let help =
            "Lines of the log that were left out, because the same place had logged much already.";
        self.left_out
            .export(meter, "log_lines_left_out_total", help);
    }
}

/// Starts logging for the whole process, from the settings `log.level` and `log.format`. Lines of JSON
/// say who `service` is. Panics are logged, too.
///
/// # Errors
/// When the level is not a filter, or logging was started before.
pub fn init(level: &str, format: LogFormat, service: &Service) -> Result<Log, TelemetryError> {
    let terminal = io::stderr().is_terminal();
    let format = resolve(format, terminal);
    let filter = filter(level)?;
    let repeats = Repeats::default();
    let (writer, log) = Log::start(repeats.counter());
    let form = match format {
        LogFormat::Json => Form::Json(service.fields().into()),
        LogFormat::Text | LogFormat::Auto => Form::Text { colours: terminal },
    };
    subscriber(filter, form, repeats, writer).try_init()?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(log)
}

/// A panic is a line of the log. The usual hook writes to stderr itself: where nobody reads, the thread
/// that has panicked would wait there, and whoever waits for its end with it.
fn log_panic(panic: &PanicHookInfo<'_>) {
    let words = panic.payload_as_str().unwrap_or("no words");
    let location = panic.location().map(ToString::to_string);
    let location = location.unwrap_or_default();
    let thread = thread::current();
    let thread = thread.name().unwrap_or_default();
    // Empty unless RUST_BACKTRACE asks for it.
    let trace = Backtrace::capture();
    let trace = match trace.status() {
        BacktraceStatus::Captured => trace.to_string(),
        _ => String::new(),
    };
    tracing::error!(
        panic.location = location,
        panic.thread = thread,
        panic.backtrace = trace,
        "panicked: {words}"
    );
}

/// Starts logging for a command that ends by itself, as lines for the person who typed it: the
/// level and the words.
///
/// # Errors
/// As for [`init`].
pub fn init_plain(level: &str) -> Result<Log, TelemetryError> {
    let filter = filter(level)?;
    let (writer, log) = Log::start(Counter::default());
    let colours = io::stderr().is_terminal();
    let form = Form::Text { colours };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .log_internal_errors(false)
        .with_writer(Lines { form, writer })
        .with_ansi(colours)
        .with_target(false)
        .without_time()
        .finish()
        .try_init()?;
    Ok(log)
}

/// What the libraries below say is of use only when somebody asks for it: the driver of the
/// broker logs returned messages with their content, that of the database every notice, that of HTTP the passwords
/// in addresses.
const QUIET: &str = "lapin=off,sqlx=warn,opentelemetry=warn,opentelemetry_sdk=warn,opentelemetry-otlp=warn,\
                     opentelemetry-http=warn,hyper_util=warn";

fn filter(level: &str) -> Result<EnvFilter, TelemetryError> {
    // Of two directives for one target the later one counts.
    EnvFilter::try_new(format!("{QUIET},{level}")).map_err(|source| TelemetryError::Level {
        level: level.to_owned(),
        source,
    })
}

/// What `auto` means here.
const fn resolve(format: LogFormat, terminal: bool) -> LogFormat {
    match format {
        LogFormat::Auto if terminal => LogFormat::Text,
        LogFormat::Auto => LogFormat::Json,
        fixed => fixed,
    }
}

fn subscriber<W>(
    filter: EnvFilter,
    form: Form,
    repeats: Repeats,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A line that cannot be written is lost. To complain of it on stderr, as is usual, is a panic
        // in the middle of whatever was logged when that is a full disk or a pipe without a reader.
        .log_internal_errors(false);
    let colours = match form {
        Form::Text { colours } => Some(colours),
        Form::Json(_) => None,
    };
    let lines = lines.with_writer(Lines { form, writer });
    match colours {
        None => Box::new(lines.json().flatten_event(true).finish().with(repeats)),
        Some(colours) => Box::new(lines.with_ansi(colours).finish().with(repeats)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::DefaultGuard;
    use tracing::{debug, info, info_span};

    use super::*;

    /// What was logged.
    #[derive(Clone, Default)]
    pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

    impl Log {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    pub(crate) fn capture_as(level: &str, format: LogFormat) -> (DefaultGuard, Log) {
        let log = Log::default();
        let writer = log.clone();
        let form = form(format);
        let filter = filter(level).unwrap();
        let lines = subscriber(filter, form, Repeats::default(), move || writer.clone());
        (tracing::subscriber::set_default(lines), log)
    }

    fn form(format: LogFormat) -> Form {
        let service = Service {
            name: "executor".to_owned(),
            instance: "one \"quoted\"".to_owned(),
        };
        match format {
            LogFormat::Json => Form::Json(service.fields().into()),
            LogFormat::Text | LogFormat::Auto => Form::Text { colours: false },
        }
    }

    /// Captures what this thread logs, at `info`, until the guard is dropped.
    pub(crate) fn capture() -> (DefaultGuard, Log) {
        capture_as("info", LogFormat::Text)
    }

    #[test]
    fn auto_is_text_on_a_terminal_and_json_elsewhere() {
        assert_eq!(resolve(LogFormat::Auto, true), LogFormat::Text);
        assert_eq!(resolve(LogFormat::Auto, false), LogFormat::Json);
        assert_eq!(resolve(LogFormat::Text, false), LogFormat::Text);
        assert_eq!(resolve(LogFormat::Json, true), LogFormat::Json);
    }

    #[test]
    fn json_lines_hold_fields_and_spans() {
        let (guard, log) = capture_as("info", LogFormat::Json);
        info_span!("task", task.name = "journal").in_scope(|| {
            info!(execution.id = 7, "granted");
            debug!("not shown");
        });
        drop(guard);
        let lines: Vec<serde_json::Value> = log
            .text()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0]["message"], "granted");
        assert_eq!(lines[0]["level"], "INFO");
        assert_eq!(lines[0]["execution.id"], 7);
        assert_eq!(lines[0]["span"]["task.name"], "journal");
        assert_eq!(lines[0]["service"], "executor");
        assert_eq!(lines[0]["instance"], "one \"quoted\"");
        assert_eq!(lines[0]["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(lines[0]["pid"], std::process::id());
    }

    /// A log on a full disk, or whose reader has gone.
    struct Broken;

    impl io::Write for Broken {
        fn write(&mut self, _bytes: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn a_line_that_cannot_be_written_is_lost_and_nothing_else() {
        for format in [LogFormat::Text, LogFormat::Json] {
            let (filter, form) = (filter("info").unwrap(), form(format));
            let lines = subscriber(filter, form, Repeats::default(), || Broken);
            let guard = tracing::subscriber::set_default(lines);
            info!("nobody reads this");
            drop(guard);
        }
    }

    #[test]
    fn a_panic_is_a_line_of_the_log() {
        let (guard, log) = capture_as("info", LogFormat::Json);
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(log_panic));
        std::panic::catch_unwind(|| panic!("no {}", "way")).unwrap_err();
        std::panic::set_hook(usual);
        drop(guard);
        let line: serde_json::Value = serde_json::from_str(&log.text()).unwrap();
        assert_eq!(line["message"], "panicked: no way");
        let location = line["panic.location"].as_str().unwrap();
        assert!(location.contains("telemetry.rs:"), "{location}");
    }

    #[test]
    fn levels_can_differ_by_crate() {
        let (guard, log) = capture_as("warn,attune_runtime=debug", LogFormat::Text);
        debug!("from here");
        info!(target: "elsewhere", "from there");
        drop(guard);
        let text = log.text();
        assert!(
            text.contains("from here") && !text.contains("from there"),
            "{text}"
        );
    }

    #[test]
    fn a_level_that_is_no_filter_is_refused() {
        let service = Service {
            name: "api".to_owned(),
            instance: "here".to_owned(),
        };
        let error = init("attune=loud", LogFormat::Auto, &service).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("log.level \"attune=loud\" is not"),
            "{error}"
        );
    }
}
