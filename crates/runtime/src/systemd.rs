//! Messages to the service manager (`Type=notify`): each does nothing without `NOTIFY_SOCKET`,
//! and a message that cannot be sent is logged and otherwise ignored, because the daemon itself
//! works without it.

use sd_notify::NotifyState;
use tracing::warn;

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

fn send(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
        warn!(%error, message = %state, "cannot notify the service manager");
    }
}
