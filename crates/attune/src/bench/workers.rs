//! Workers in the process of the benchmark.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use attune_bench::{Doubling, Scenario};
use attune_config::Settings;
use attune_runtime::{Health, Metrics, Shutdown};

use crate::parts::Parts;
use crate::roles::{self, Role};

/// Workers that were started in this process.
#[derive(Default)]
pub(super) struct Workers {
    /// Completions that were sent twice, where some are.
    again: Option<Arc<AtomicU64>>,
}

impl Workers {
    /// Starts so many workers, which record in `history` what they run and stop with `shutdown`.
    /// Where the scenario says so they send completions twice.
    pub(super) async fn start(
        scenario: &Scenario,
        (settings, parts): (&Settings, &Parts),
        workers: u16,
        history: &Path,
        (health, metrics): (&Health, &Metrics),
        shutdown: &Shutdown,
    ) -> anyhow::Result<Self> {
        let (mut parts, mut again) = (parts.clone(), None);
        if let Some(every) = scenario.doubled {
            let max_message_bytes = settings.broker.max_message_bytes;
            // One for all of them, so that the share is that of all completions.
            let doubling = Doubling::new(parts.bus.clone(), every, max_message_bytes);
            again = Some(doubling.again());
            parts.bus = Arc::new(doubling);
        }
        let mut settings = settings.clone();
        settings.history.dir = Some(history.to_owned());
        for number in 1..=workers {
            settings.worker.name = Some(format!("bench-worker-{number}"));
            let role = [Role::Worker];
            roles::start(&settings, &role, &parts, health, metrics, shutdown).await?;
        }
        Ok(Self { again })
    }

    /// How many completions they have sent twice.
    pub(super) fn sent_twice(&self) -> u64 {
        let again = self.again.as_ref();
        again.map_or(0, |again| again.load(Ordering::Relaxed))
    }
}
