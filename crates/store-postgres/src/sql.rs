//! Every statement, each in a file of its own. The session settings that a statement needs are
//! in the module `sessions`, its locking is explained in its file.

pub use crate::commit_parts::{CommitOf, Part, commit};

/// Declares the statements and the list of them.
macro_rules! statements {
    ($($name:ident = $file:literal,)*) => {
        $(pub(crate) const $name: &str = include_str!(concat!("../sql/", $file, ".sql"));)*

        /// Every statement with the name of its file, for the test that prepares them all; the commit as
        /// it stands in its file.
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
    ADD_KEY = "add_key",
    ADD_OPERATION = "add_operation",
    ADD_OPERATION_PARTS = "add_operation_parts",
    ADD_PAUSE = "add_pause",
    ADD_POLICY = "add_policy",
    AUDIT_CHAIN = "audit_chain",
    AUDIT_LOG = "audit_log",
    BEGIN_REQUEUE = "begin_requeue",
    CHANGE_ACTION = "change_action",
    CHECK_SETTINGS = "check_settings",
    CLUSTER_BUS = "cluster_bus",
    CLUSTER_PARTITIONS = "cluster_partitions",
    COMMIT = "commit",
    COUNT_MEANT = "count_meant",
    COUNT_QUEUE_STATS = "count_queue_stats",
    COUNT_WAITING = "count_waiting",
    DEPTH = "depth",
    DROP_DAY = "drop_day",
    END_WORKERS = "end_workers",
    EXECUTORS = "executors",
    FIND_ACTIVE = "find_active",
    FIND_DEAD_LETTER = "find_dead_letter",
    FIND_ENDED = "find_ended",
    FIND_KEY = "find_key",
    FIND_PARAMETERS_ACTIVE = "find_parameters_active",
    FIND_PARAMETERS_ENDED = "find_parameters_ended",
    FIND_PAUSE = "find_pause",
    FIND_QUEUE_STATS = "find_queue_stats",
    FIND_STANDING_ACTIVE = "find_standing_active",
    FIND_STANDING_ENDED = "find_standing_ended",
    GIVE_UP = "give_up",
    HISTORY_DAYS = "history_days",
    JUDGE_KEY = "judge_key",
    KEEP_AUDIT_FOR = "keep_audit_for",
    LEASES = "leases",
    LIST_ACTIONS = "list_actions",
    LIST_ACTIVE = "list_active",
    LIST_DEAD_LETTERS = "list_dead_letters",
    LIST_ENDED = "list_ended",
    LIST_KEYS = "list_keys",
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
    LOCK_KEYS = "lock_keys",
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
    NOTE_KEY_USE = "note_key_use",
    NOTE_START = "note_start",
    NOTE_TROUBLE = "note_trouble",
    NOW = "now",
    OPEN_OPERATIONS = "open_operations",
    OPERATION_OF_REQUEST = "operation_of_request",
    POLICY_CHANGES = "policy_changes",
    POLICY_MARK = "policy_mark",
    POLICY_PROGRESS = "policy_progress",
    POLICY_VERSIONS = "policy_versions",
    PRINCIPAL_OF = "principal_of",
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
    REQUEST_GAP = "request_gap",
    RESTORE_FENCE = "restore_fence",
    RETIRE_EXECUTOR = "retire_executor",
    REVOKE_KEY = "revoke_key",
    ROTATE_KEY = "rotate_key",
    SCAN_ACTIVE = "scan_active",
    SCHEMA_EXISTS = "schema_exists",
    SCHEMA_VERSION = "schema_version",
    SESSION_IS_SOUND = "session_is_sound",
    SHARE_POLICIES = "share_policies",
    SLOT_HOLDERS = "slot_holders",
    STOCK = "stock",
    SURVEY_LOGIN = "survey_login",
    SURVEY_SERVER = "survey_server",
    SURVEY_SESSIONS = "survey_sessions",
    SURVEY_TABLES = "survey_tables",
    SYSTEM_ID = "system_id",
    TRANSACTIONS = "transactions",
    UNCHAINED_AUDIT = "unchained_audit",
    UPSERT_QUEUE_STATS = "upsert_queue_stats",
    VIOLATIONS = "violations",
    WAL_POSITION = "wal_position",
    WORKER_ENDED = "worker_ended",
    WORKER_ENDS = "worker_ends",
    WORKERS = "workers",
    WRITE_POLICY_PROGRESS = "write_policy_progress",
}

#[cfg(test)]
mod tests {
    use super::ALL;

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
