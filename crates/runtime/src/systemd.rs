//! Messages to the service manager (`Type=notify`): each does nothing without `NOTIFY_SOCKET`,
//! and a message that cannot be sent is logged and otherwise ignored, because the daemon itself
//! works without it.

use std::pin::pin;
use std::time::Duration;

use sd_notify::NotifyState;
use tracing::{error, info, warn};

use crate::health::Health;

/// Start-up is finished.
pub fn ready() {
    send(&NotifyState::Ready);
}

/// One line that `systemctl status` shows, such as the partitions that are owned.
pub fn status(line: &str) {
    // A line break would begin another message.
    send(&NotifyState::Status(&line.replace(['\n', '\r'], " ")));
}

/// The stop has begun.
pub fn stopping() {
    send(&NotifyState::Stopping);
}

/// How much more time to stop the service manager is asked for at once, in microseconds: a minute.
const EXTENSION: u32 = 60_000_000;

/// Waits for a stop that may take longer than the service manager knows of (`TimeoutStopSec=`), and asks
/// it for more time as long as that goes on: what a worker still runs may take hours.
pub async fn while_stopping<T>(stop: impl Future<Output = T>) -> T {
    let mut stop = pin!(stop);
    let step = Duration::from_micros(EXTENSION.into()) / 3;
    loop {
        send(&NotifyState::ExtendTimeoutUsec(EXTENSION));
        if let Ok(stopped) = tokio::time::timeout(step, &mut stop).await {
            return stopped;
        }
    }
}

/// Tells the watchdog of the service manager (`WatchdogSec=`) that all is well, twice per its
/// time, as long as every loop of the daemon makes its rounds; in the end it is killed and started
/// anew. Does nothing without a watchdog.
///
/// # Panics
/// Outside a Tokio runtime.
pub fn watchdog(health: &Health) {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else {
        return;
    };
    let health = health.clone();
    // Not one of the tasks that a stop waits for: the stop is watched over too.
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(limit / 2);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut is_stalled = false;
        loop {
            ticks.tick().await;
            let problem = health.stalled();
            match &problem {
                None => send(&NotifyState::Watchdog),
                Some(problem) if !is_stalled => {
                    error!(
                        problem,
                        "no progress; the watchdog is not told that all is well"
                    );
                    status(&format!("no progress: {problem}"));
                }
                Some(_) => {}
            }
            if is_stalled && problem.is_none() {
                info!("progress again");
                status("progress again");
            }
            is_stalled = problem.is_some();
        }
    });
}

fn send(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
        warn!(%error, message = %state, "cannot notify the service manager");
    }
}
