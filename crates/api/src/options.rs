//! What the server can be told.

use std::net::SocketAddr;
use std::time::Duration;

/// Settings of the server; see [`ApiOptions::new`] for the defaults.
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// Where it listens: a loopback address; port 0 takes a free one.
    pub listen: SocketAddr,
    /// How many partitions the cluster has.
    pub partitions: u16,
    /// Larger request bodies are refused with 413, in bytes.
    pub max_body_bytes: usize,
    /// How long a command waits for the answer of its partition's owner.
    pub submit_timeout: Duration,
    /// The largest page that a list may be asked for, in rows.
    pub max_page_size: u32,
    /// What holds for queues whose policy does not say otherwise.
    pub queue: QueueDefaults,
    /// Connections beyond this number wait to be accepted.
    pub max_connections: usize,
    /// Requests beyond this number at once are answered with 503 `OVERLOADED`.
    pub max_requests: usize,
}

/// Bounds of queues whose policy does not set its own: `executor.queue.*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueDefaults {
    /// How many executions may wait.
    pub max_queue_length: u32,
    /// How long an execution may wait.
    pub queue_timeout: Duration,
}

impl Default for QueueDefaults {
    fn default() -> Self {
        Self {
            max_queue_length: 10_000,
            queue_timeout: Duration::from_secs(3600),
        }
    }
}

impl ApiOptions {
    /// The defaults of the default settings file.
    pub fn new(listen: SocketAddr, partitions: u16) -> Self {
        Self {
            listen,
            partitions,
            max_body_bytes: attune_core::input::DEFAULT_MAX_BYTES,
            submit_timeout: Duration::from_secs(10),
            max_page_size: 1000,
            queue: QueueDefaults::default(),
            max_connections: 1024,
            max_requests: 1024,
        }
    }

    /// How long any request may take: a command's deadline and room for everything around it.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.submit_timeout + Duration::from_secs(10)
    }
}
