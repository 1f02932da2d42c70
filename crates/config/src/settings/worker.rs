//! The settings of the worker role.

use std::path::PathBuf;
use std::time::Duration;

use attune_core::{Builtin, Cpu, Size};
use serde::{Deserialize, Serialize};

use super::host_name;

/// The worker role.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSettings {
    /// See [`name_or_host`](Self::name_or_host).
    pub name: Option<String>,
    /// The pool whose executions this worker takes.
    pub pool: String,
    /// Executions that run at once.
    pub slots: usize,
    /// The worker's lease.
    pub lease: WorkerLeaseSettings,
    /// What is kept of stdout and of stderr, each, in bytes.
    pub output_max_bytes: usize,
    /// See [`kill_grace`](Self::kill_grace).
    pub kill_grace_seconds: u64,
    /// See [`drain`](Self::drain).
    pub drain_seconds: u64,
    /// See [`work_dir_or_temp`](Self::work_dir_or_temp).
    pub work_dir: Option<PathBuf>,
    /// See [`state_dir_or_work_dir`](Self::state_dir_or_work_dir).
    pub state_dir: Option<PathBuf>,
    /// Bounds of `core.http.get`.
    pub http: WorkerHttpSettings,
    /// The worker's own variables that a run may see.
    pub env_allow: Vec<String>,
    /// The folder of the secrets that the variables of actions may name.
    pub secrets_dir: Option<PathBuf>,
    /// Whether the variables of an action may be such as choose the code that runs.
    pub env_unsafe: bool,
    /// What this worker does itself.
    pub builtins: Vec<Builtin>,
    /// Where the programs are that may be run; all when empty.
    pub program_dirs: Vec<PathBuf>,
    /// Whether the role may run programs as root.
    pub allow_root: bool,
    /// The account that programs run as: a name, `UID` or `UID:GID`.
    pub run_as: Option<String>,
    /// What keeps programs from what is not theirs.
    pub sandbox: SandboxMode,
    /// The folders that programs may write to; all when empty.
    pub write_dirs: Vec<PathBuf>,
    /// Bounds of each run.
    pub limits: WorkerLimits,
}

/// Whether programs are kept from what is not theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxMode {
    /// As far as the machine can.
    Auto,
    /// Fully, or the worker does not start.
    Required,
    /// No.
    Off,
}

/// Bounds of each run whose action says nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerLimits {
    /// Memory, in bytes.
    pub memory: Option<Size>,
    /// Processors.
    pub cpu: Option<Cpu>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Files that one process may have open.
    pub open_files: Option<u64>,
    /// Of each file, in bytes.
    pub file_size: Option<Size>,
}

impl WorkerSettings {
    /// The name that leases and logs show.
    #[must_use]
    pub fn name_or_host(&self) -> String {
        self.name.clone().unwrap_or_else(host_name)
    }

    /// Where a run gets its own folder.
    #[must_use]
    pub fn work_dir_or_temp(&self) -> PathBuf {
        self.work_dir.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// Where it is noted what has begun.
    #[must_use]
    pub fn state_dir_or_work_dir(&self) -> PathBuf {
        let state_dir = self.state_dir.clone();
        state_dir.unwrap_or_else(|| self.work_dir_or_temp())
    }

    /// Between TERM and KILL when a run is ended.
    #[must_use]
    pub const fn kill_grace(&self) -> Duration {
        Duration::from_secs(self.kill_grace_seconds)
    }

    /// How long running executions may go on when the worker is asked to stop.
    #[must_use]
    pub const fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }
}

/// The worker's lease.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerLeaseSettings {
    /// See [`ttl`](Self::ttl).
    pub ttl_seconds: u64,
    /// See [`grace`](Self::grace).
    pub grace_seconds: u64,
}

impl WorkerLeaseSettings {
    /// How long the lease lasts unless it is renewed.
    #[must_use]
    pub const fn ttl(&self) -> Duration {
        Duration::from_secs(self.ttl_seconds)
    }

    /// How long after the lease's end the worker's slots are given to others.
    #[must_use]
    pub const fn grace(&self) -> Duration {
        Duration::from_secs(self.grace_seconds)
    }
}

/// Bounds of `core.http.get`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerHttpSettings {
    /// Whether loopback, private and link-local addresses may be reached.
    pub allow_private_addresses: bool,
    /// See [`timeout`](Self::timeout).
    pub timeout_seconds: u64,
    /// What is read of a response, at most, in bytes.
    pub max_body_bytes: usize,
}

impl WorkerHttpSettings {
    /// For one whole request.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds)
    }
}
