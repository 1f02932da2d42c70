//! Every statement, each in a file of its own. The session settings that a statement needs are
//! in the module `sessions`, its locking is explained in its file.

use std::sync::LazyLock;

/// Declares the statements and the list of them.
macro_rules! statements {
    ($($name:ident = $file:literal,)*) => {
        $(pub(crate) const $name: &str = include_str!(concat!("../sql/", $file, ".sql"));)*

        /// Every statement with the name of its file, for the test that prepares them all.
        pub const ALL: &[(&str, &str)] = &[$(($file, $name)),*];
    };
}

statements! {
    ACCEPT_CORRECTION = "accept_correction",
    ACQUIRE = "acquire",
    ACQUIRE_OBSERVED = "acquire_observed",
    ACTIONS_BY_REF = "actions_by_ref",
    ADD_AUDIT = "add_audit",
    ADD_DEAD_LETTERS = "add_dead_letters",
    ADD_OPERATION = "add_operation",
    ADD_OPERATION_PARTS = "add_operation_parts",
    ADD_PAUSE = "add_pause",
    ADD_POLICY = "add_policy",
    AUDIT_LOG = "audit_log",
    BEGIN_REQUEUE = "begin_requeue",
    CHANGE_ACTION = "change_action",
    CHECK_SETTINGS = "check_settings",
    CLUSTER_BUS = "cluster_bus",
    CLUSTER_PARTITIONS = "cluster_partitions",
    COMMIT = "commit",
    COUNT_MEANT = "count_meant",
    COUNT_QUEUE_STATS = "count_queue_stats",
    DEPTH = "depth",
    DROP_DAY = "drop_day",
    END_WORKERS = "end_workers",
    EXECUTORS = "executors",
    FIND_ACTIVE = "find_active",
    FIND_DEAD_LETTER = "find_dead_letter",
    FIND_ENDED = "find_ended",
    FIND_PARAMETERS_ACTIVE = "find_parameters_active",
    FIND_PARAMETERS_ENDED = "find_parameters_ended",
    FIND_PAUSE = "find_pause",
    FIND_QUEUE_STATS = "find_queue_stats",
    FIND_STANDING_ACTIVE = "find_standing_active",
    FIND_STANDING_ENDED = "find_standing_ended",
    GIVE_UP = "give_up",
    HISTORY_DAYS = "history_days",
    LEASES = "leases",
    LIST_ACTIONS = "list_actions",
    LIST_ACTIVE = "list_active",
    LIST_DEAD_LETTERS = "list_dead_letters",
    LIST_ENDED = "list_ended",
    LIST_OPERATIONS = "list_operations",
    LIST_QUEUE_STATS = "list_queue_stats",
    LOAD_ACTIONS = "load_actions",
    LOAD_BODIES = "load_bodies",
    LOAD_LABELS = "load_labels",
    LOAD_METERS = "load_meters",
    LOAD_PARTITION = "load_partition",
    LOAD_PAUSES = "load_pauses",
    LOAD_POLICIES = "load_policies",
    LOAD_SLOTS = "load_slots",
    LOAD_TOTALS = "load_totals",
    LOAD_WORDS = "load_words",
    LOCK_ACTION = "lock_action",
    LOOK_UP_HISTORY = "look_up_history",
    LOOK_UP_REQUESTS = "look_up_requests",
    MAKE_ACTION = "make_action",
    MAKE_CLUSTER = "make_cluster",
    MAKE_DAYS = "make_days",
    MAKE_LEASES = "make_leases",
    MAKE_PACK = "make_pack",
    MARK_REQUEUED = "mark_requeued",
    MEANT_LABELS = "meant_labels",
    MOVE_EXECUTIONS = "move_executions",
    NEWEST_POLICY = "newest_policy",
    NOTE_BUS = "note_bus",
    NOTE_TROUBLE = "note_trouble",
    NOW = "now",
    OPEN_OPERATIONS = "open_operations",
    OPERATION_OF_REQUEST = "operation_of_request",
    POLICY_CHANGES = "policy_changes",
    POLICY_MARK = "policy_mark",
    POLICY_PROGRESS = "policy_progress",
    POLICY_VERSIONS = "policy_versions",
    PRUNE_AUDIT = "prune_audit",
    PRUNE_DEAD_LETTERS = "prune_dead_letters",
    PRUNE_DEFAULT_HISTORY = "prune_default_history",
    PRUNE_DEFAULT_REQUESTS = "prune_default_requests",
    PRUNE_EXECUTORS = "prune_executors",
    PRUNE_METERS = "prune_meters",
    PRUNE_OPERATIONS = "prune_operations",
    PRUNE_POLICIES = "prune_policies",
    PRUNE_STATS_HISTORY = "prune_stats_history",
    PRUNE_WORKERS = "prune_workers",
    PUT_BACK = "put_back",
    RAISE_PAUSES = "raise_pauses",
    RAISE_POLICIES = "raise_policies",
    REMOVE_PAUSE = "remove_pause",
    RENEW = "renew",
    RENEW_EXECUTOR = "renew_executor",
    RENEW_WORKER = "renew_worker",
    RESTORE_FENCE = "restore_fence",
    RETIRE_EXECUTOR = "retire_executor",
    RETIRE_WORKER = "retire_worker",
    SCAN_ACTIVE = "scan_active",
    SCHEMA_EXISTS = "schema_exists",
    SCHEMA_VERSION = "schema_version",
    SESSION_IS_SOUND = "session_is_sound",
    SHARE_POLICIES = "share_policies",
    SLOT_HOLDERS = "slot_holders",
    SYSTEM_ID = "system_id",
    UPSERT_QUEUE_STATS = "upsert_queue_stats",
    VIOLATIONS = "violations",
    WAL_POSITION = "wal_position",
    WORKER_ENDS = "worker_ends",
    WORKERS = "workers",
    WRITE_POLICY_PROGRESS = "write_policy_progress",
}

/// Which parts of [`COMMIT`] a batch needs.
#[derive(Debug, Clone, Copy)]
pub struct CommitOf {
    /// Whether it accepts executions.
    pub accepts: bool,
    /// Whether something is counted for a limit.
    pub meters: bool,
    /// Whether an operation goes on.
    pub progress: bool,
    /// Whether something of it may be there already.
    pub again: bool,
}

/// A part of [`COMMIT`] that not every batch needs: the marks around it, and how many parameters are its own.
type Part = (&'static str, &'static str, usize);

/// In the order of the text; their parameters are the last ones.
const PARTS: [Part; 3] = [
    ("ACCEPTS", "ACCEPTED", 44),
    ("METERS", "METERED", 5),
    ("PROGRESS", "PROGRESSED", 8),
];
/// The number of the first parameter that belongs to a part.
const FIRST: usize = 31;

/// The texts of [`COMMIT`] that are run, by [`CommitOf::place`].
static COMMITS: LazyLock<[String; 16]> = LazyLock::new(|| std::array::from_fn(text));

/// The commit for such a batch.
pub fn commit(of: CommitOf) -> &'static str {
    &COMMITS[of.place()]
}

impl CommitOf {
    fn place(self) -> usize {
        let bits = [self.accepts, self.meters, self.progress, self.again];
        bits.iter()
            .rev()
            .fold(0, |place, bit| place << 1 | usize::from(*bit))
    }
}

/// The commit of the batches with this [`CommitOf::place`].
fn text(place: usize) -> String {
    let mut text = COMMIT.to_owned();
    let (mut number, mut left_out) = (FIRST, 0);
    for (at, (begin, end, parameters)) in PARTS.into_iter().enumerate() {
        if place >> at & 1 == 0 {
            text = without(&text, begin, end);
            left_out += parameters;
        } else {
            for number in number..number + parameters {
                let fewer = format!("${}::", number - left_out);
                text = text.replace(&format!("${number}::"), &fewer);
            }
        }
        number += parameters;
    }
    if place >> PARTS.len() & 1 == 1 {
        text = text.replace("-- AGAIN: ", "");
    }
    bare(&text)
}

/// A text without what stands between two marks.
fn without(text: &str, begin: &str, end: &str) -> String {
    let parts = text.split_once(&format!("\n-- {begin}\n"));
    let parts = parts.and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&format!("\n-- {end}\n"))?;
        Some(format!("{before}\n{after}"))
    });
    parts.unwrap_or_else(|| text.to_owned())
}

/// Without the lines that are comments: the driver looks a statement up by its text, every time.
fn bare(text: &str) -> String {
    let lines = text.lines();
    let lines = lines.filter(|line| !line.trim_start().starts_with("--"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::{ALL, CommitOf, commit};

    #[test]
    fn what_a_batch_does_not_need_is_left_out_whole() {
        for (accepts, meters, progress, inserts, parameters) in [
            (false, false, false, 2, 30),
            (false, true, false, 3, 35),
            (false, false, true, 2, 38),
            (false, true, true, 3, 43),
            (true, false, false, 5, 74),
            (true, true, false, 6, 79),
            (true, false, true, 5, 82),
            (true, true, true, 6, 87),
        ] {
            let of = CommitOf {
                accepts,
                meters,
                progress,
                again: true,
            };
            let text = commit(of);
            let by_meters = usize::from(meters);
            let conflicts = if accepts { 3 } else { 1 } + by_meters;
            assert_eq!(text.matches("INSERT INTO").count(), inserts, "{text}");
            assert_eq!(text.matches("ON CONFLICT").count(), conflicts, "{text}");
            for number in 1..=88 {
                let is_there = text.contains(&format!("${number}::"));
                assert_eq!(is_there, number <= parameters, "${number} in {text}");
            }
            assert_eq!(text.contains("operation_progress"), progress, "{text}");
            let first = commit(CommitOf { again: false, ..of });
            assert_eq!(first.matches("ON CONFLICT").count(), by_meters, "{first}");
        }
    }

    #[test]
    fn every_file_is_declared() {
        let mut files: Vec<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/sql"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let declared: Vec<String> = ALL.iter().map(|(name, _)| format!("{name}.sql")).collect();
        assert_eq!(files, declared);
    }
}
