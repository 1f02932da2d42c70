//! What a worker is told when it starts.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use attune_runtime::{Progress, Spans};
use attune_secrets::Keyring;

use crate::containment::Containment;

/// Settings of a [`Worker`](crate::Worker).
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Its name for people; it should differ between workers that run at once, as lists tell them
    /// apart by it, and nothing breaks when it does not.
    pub name: String,
    /// The pool whose executions it takes.
    pub pool: String,
    /// Executions that run at once.
    pub slots: usize,
    /// How long it counts as alive without a renewal of its lease.
    pub lease_ttl: Duration,
    /// How long after its lease's end its slots are given to others. What it ran must be gone
    /// by then; it says so loudly when it is not.
    pub lease_grace: Duration,
    /// What is kept of stdout and of stderr, each, in bytes.
    pub output_max_bytes: usize,
    /// Between TERM and KILL when a run is ended.
    pub kill_grace: Duration,
    /// How long running executions may go on when the worker is asked to stop.
    pub drain: Duration,
    /// Where each run gets a folder of its own; made where it is missing.
    pub work_dir: PathBuf,
    /// Where it is noted what has begun, so that the slots of a worker that was killed come back
    /// before the end of its lease; made where it is missing. What comes in its place must have the
    /// same.
    pub state_dir: PathBuf,
    /// The worker's own variables that a run may see.
    pub env_allow: Vec<String>,
    /// What keeps runs from what is not theirs.
    pub containment: Containment,
    /// Where it has the secrets that runs need.
    pub secrets: SecretOptions,
    /// Bounds of `core.http.get`.
    pub http: HttpOptions,
    /// The command that fetches for `core.http.get`: a program that calls
    /// [`run_http`](crate::run_http) with the bounds in `http`. Without one, such a run fails.
    pub fetch: Vec<OsString>,
    /// The largest message that is read or sent, in bytes.
    pub max_message_bytes: usize,
    /// The command that starts a guard, in which [`guard::run`](crate::guard::run) is called: it
    /// kills what the worker runs when the worker itself cannot. Empty for none.
    pub guard: Vec<OsString>,
    /// How long a completion of which its owner has not said that it is written down goes to where
    /// messages end with the broker only; then it is told again, to where they outlive it.
    pub retell_after: Duration,
    /// How long what was granted waits for its start while this worker can start nothing; then it
    /// goes to others.
    pub start_patience: Duration,
    /// Stamped in every round of the worker's loop.
    pub progress: Progress,
    /// Where the spans of what it runs go.
    pub spans: Spans,
}

/// Where a worker has the secrets that runs need.
#[derive(Debug, Clone)]
pub struct SecretOptions {
    /// What is sealed in parameters is opened with these.
    pub keys: Keyring,
    /// The folder of files by the names of secrets.
    pub dir: Option<PathBuf>,
    /// The folder of what systemd hands the process; secrets there have `secret.` before their names, since what
    /// the process itself needs is there too.
    pub credentials: Option<PathBuf>,
    /// Reads such a file.
    ///
    /// # Errors
    /// Words, where it cannot be read or may not be used.
    pub read: fn(&Path) -> Result<String, String>,
}

impl Default for SecretOptions {
    fn default() -> Self {
        Self {
            keys: Keyring::default(),
            dir: None,
            credentials: None,
            read: |path| std::fs::read_to_string(path).map_err(|error| error.to_string()),
        }
    }
}

/// Bounds of `core.http.get`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpOptions {
    /// Whether loopback, private, link-local and metadata addresses may be reached.
    pub allow_private_addresses: bool,
    /// For one whole request, redirects included.
    pub timeout: Duration,
    /// What is read of a response, at most, in bytes.
    pub max_body_bytes: usize,
    /// What a result may take as JSON, at most, in bytes: a body that takes more is cut, so that its
    /// completion fits into a message.
    pub max_result_bytes: usize,
}

impl HttpOptions {
    /// How large a result may be where messages may be so large: what else a completion says needs
    /// some room.
    pub fn result_bytes(max_message_bytes: usize) -> usize {
        max_message_bytes.saturating_sub(ROOM_BYTES)
    }
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            name: "worker".to_owned(),
            pool: "default".to_owned(),
            slots: 64,
            lease_ttl: Duration::from_secs(60),
            lease_grace: Duration::from_secs(5),
            output_max_bytes: 256 * 1024,
            kill_grace: Duration::from_secs(5),
            drain: Duration::from_secs(30),
            work_dir: std::env::temp_dir(),
            state_dir: std::env::temp_dir(),
            env_allow: ["PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR"]
                .map(str::to_owned)
                .into(),
            containment: Containment::default(),
            secrets: SecretOptions::default(),
            http: HttpOptions::default(),
            fetch: Vec::new(),
            max_message_bytes: 1024 * 1024,
            guard: Vec::new(),
            retell_after: Duration::from_secs(2),
            start_patience: Duration::from_secs(60),
            progress: Progress::default(),
            spans: Spans::default(),
        }
    }
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            allow_private_addresses: false,
            timeout: Duration::from_secs(30),
            max_body_bytes: 1024 * 1024,
            max_result_bytes: Self::result_bytes(1024 * 1024),
        }
    }
}

/// What a completion takes beside its result, and an error in it, in bytes.
const ROOM_BYTES: usize = 2048;
/// The smallest message bound: below it, not even a completion without any output would fit.
const MIN_MESSAGE_BYTES: usize = 4096;
/// The shortest lease: below it, renewals would follow each other without a pause.
const MIN_TTL: Duration = Duration::from_millis(100);

impl WorkerOptions {
    /// How long before the end of its lease a worker no longer trusts it.
    pub(crate) fn lease_margin(&self) -> Duration {
        Duration::from_secs(2).min(self.lease_ttl / 6)
    }

    /// Words that say what is impossible, if anything is.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.name.is_empty() || self.pool.is_empty() {
            return Some("a worker needs a name and a pool".to_owned());
        }
        if self.slots == 0 || u32::try_from(self.slots).is_err() {
            return Some(format!("a worker cannot have {} slots", self.slots));
        }
        if self.lease_ttl < MIN_TTL {
            return Some(format!("the lease must last at least {MIN_TTL:?}"));
        }
        if self.max_message_bytes < MIN_MESSAGE_BYTES {
            return Some(format!(
                "messages must be allowed at least {MIN_MESSAGE_BYTES} bytes"
            ));
        }
        self.containment.problem()
    }
}
