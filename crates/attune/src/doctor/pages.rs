//! Where more is written, below the root of the repository.

pub(super) const CONFIGURATION: &str = "docs/CONFIGURATION.md";
pub(super) const LEAVING_LOOPBACK: &str = "docs/CONFIGURATION.md#leaving-loopback";
pub(super) const INSTALL: &str = "docs/INSTALL.md";
pub(super) const CAPACITY: &str = "docs/CAPACITY.md";
pub(super) const SECURITY_BROKER: &str = "docs/SECURITY.md#on-the-broker";
pub(super) const STUCK: &str = "docs/OPERATIONS.md#why-does-a-queue-not-move";
pub(super) const HEALTH: &str = "docs/OPERATIONS.md#what-the-health-of-a-queue-means";
pub(super) const OTLP: &str = "docs/CONFIGURATION.md#otlp";
pub(super) const SECRETS: &str = "docs/SECURITY.md#secrets";
pub(super) const LACKS_KEY: &str = "docs/runbook/AttuneWorkerLacksKey.md";
pub(super) const NO_ENDS: &str = "docs/runbook/AttuneCompletionsDoNotArrive.md";
pub(super) const CERTIFICATES: &str = "docs/OPERATIONS.md#certificates";
pub(super) const WORKERS: &str = "docs/OPERATIONS.md#when-a-worker-dies";
pub(super) const CONTAINMENT: &str = "docs/OPERATIONS.md#what-keeps-programs-from-their-worker";
pub(super) const RABBITMQ: &str = "docs/OPERATIONS.md#what-rabbitmq-does-now-and-then";
pub(super) const BROKER_USERS: &str = "docs/OPERATIONS.md#who-may-do-what-on-the-broker";
pub(super) const LOGINS: &str = "docs/OPERATIONS.md#who-may-do-what-in-the-database";
pub(super) const DEAD_LETTERS: &str = "docs/OPERATIONS.md#dead-letters";
pub(super) const AUDIT: &str = "docs/OPERATIONS.md#the-audit-log";
pub(super) const CLOCKS: &str = "docs/OPERATIONS.md#what-is-removed-and-clocks";
pub(super) const FILE: &str = "docs/OPERATIONS.md#the-file-of-standalone";
pub(super) const UPGRADING: &str = "docs/OPERATIONS.md#upgrading";
pub(super) const DOCTOR: &str = "docs/OPERATIONS.md#attune-doctor";
pub(super) const NO_OWNER: &str = "docs/runbook/AttunePartitionWithoutOwner.md";
pub(super) const HISTORY_DAYS: &str = "docs/runbook/AttuneHistoryDays.md";
pub(super) const NO_DAY: &str = "docs/runbook/AttuneRowsOfNoDay.md";
pub(super) const DISK: &str = "docs/runbook/AttuneDiskFull.md";
pub(super) const BUS: &str = "docs/runbook/AttuneBusDown.md";
pub(super) const STORE: &str = "docs/runbook/AttuneStoreFails.md";

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// The name of a heading as links have it.
    fn anchor(heading: &str) -> String {
        let kept = |it: &char| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_');
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        heading
            .chars()
            .filter(kept)
            .collect::<String>()
            .replace(' ', "-")
    }

    #[test]
    fn every_page_is_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let links = include_str!("pages.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("pub(super) const ")?.split('"').nth(1));
        let mut seen = 0;
        for link in links {
            seen += 1;
            let (page, place) = link.split_once('#').unwrap_or((link, ""));
            let text = std::fs::read_to_string(root.join(page)).unwrap_or_default();
            assert!(!text.is_empty(), "{page} is not there");
            let mut headings = text.lines().filter(|line| line.starts_with('#'));
            let found = place.is_empty() || headings.any(|heading| anchor(heading) == place);
            assert!(found, "{link} leads nowhere");
        }
        assert!(seen > 20);
    }
}
