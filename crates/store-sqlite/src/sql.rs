//! Every statement of the adapter, each in a file of its own that explains its locking.
//!
//! They are public so that a test can prepare each of them on a migrated database, and so that
//! people can read what runs.

macro_rules! statements {
    ($($name:ident = $file:literal,)*) => {
        $(
            #[doc = concat!("The statement in `sql/", $file, ".sql`.")]
            pub const $name: &str = include_str!(concat!("../sql/", $file, ".sql"));
        )*

        /// Every statement with the name of its file.
        pub const ALL: &[(&str, &str)] = &[$(($file, $name)),*];
    };
}

statements! {
    ACQUIRE = "acquire",
    ACQUIRE_OBSERVED = "acquire_observed",
    ADD_DEAD_LETTER = "add_dead_letter",
    APPLIED_MIGRATIONS = "applied_migrations",
    AUDIT_LOG = "audit_log",
    CHECK_FENCES = "check_fences",
    CLAIM = "claim",
    CLUSTER_BUS = "cluster_bus",
    CLUSTER_PARTITIONS = "cluster_partitions",
    COUNT_QUEUE_STATS = "count_queue_stats",
    END_DELETE = "end_delete",
    END_FORMER_PARTITIONS = "end_former_partitions",
    END_FORMER_WORKERS = "end_former_workers",
    END_INTO_HISTORY = "end_into_history",
    END_WORKERS = "end_workers",
    ENSURE_CLUSTER = "ensure_cluster",
    ENSURE_LEASES = "ensure_leases",
    ENSURE_PACK = "ensure_pack",
    EXECUTORS = "executors",
    FIND_ACTION = "find_action",
    FIND_DEAD_LETTER = "find_dead_letter",
    FIND_EXECUTION = "find_execution",
    FIND_QUEUE_STATS = "find_queue_stats",
    FIND_STANDING = "find_standing",
    FORGET_FORMER_EXECUTORS = "forget_former_executors",
    GIVE_UP = "give_up",
    GRANT = "grant",
    GRANTED_BODIES = "granted_bodies",
    INSERT_ACTION = "insert_action",
    INSERT_ACTIVE = "insert_active",
    INSERT_AUDIT = "insert_audit",
    INSERT_INSTANT = "insert_instant",
    INSERT_POLICY = "insert_policy",
    INSERT_REQUEST = "insert_request",
    JUMP_EPOCHS = "jump_epochs",
    KEEP_STATS_MINUTE = "keep_stats_minute",
    LEASES = "leases",
    LETTER_TO_REQUEUE = "letter_to_requeue",
    LIST_ACTIONS = "list_actions",
    LIST_DEAD_LETTERS = "list_dead_letters",
    LIST_EXECUTIONS = "list_executions",
    LIST_EXECUTIONS_OF_ACTION = "list_executions_of_action",
    LIST_QUEUE_STATS = "list_queue_stats",
    LOAD_ACTIONS = "load_actions",
    LOAD_BODIES = "load_bodies",
    LOAD_PARTITION = "load_partition",
    LOAD_SLOTS = "load_slots",
    LOAD_TOTALS = "load_totals",
    LOOK_UP_ACTIONS = "look_up_actions",
    LOOK_UP_REQUESTS = "look_up_requests",
    MARK_CANCELLED = "mark_cancelled",
    MARK_REQUEUED = "mark_requeued",
    NOTE_BUS = "note_bus",
    NOTE_TROUBLE = "note_trouble",
    NOW = "now",
    POLICY_CHANGES = "policy_changes",
    PRUNE_AUDIT = "prune_audit",
    PRUNE_DEAD_LETTERS = "prune_dead_letters",
    PRUNE_EXECUTORS = "prune_executors",
    PRUNE_HISTORY = "prune_history",
    PRUNE_POLICIES = "prune_policies",
    PRUNE_REQUESTS = "prune_requests",
    PRUNE_STATS_HISTORY = "prune_stats_history",
    PRUNE_WORKERS = "prune_workers",
    RENEW = "renew",
    RENEW_EXECUTOR = "renew_executor",
    RENEW_WORKER = "renew_worker",
    RETIRE_EXECUTOR = "retire_executor",
    RETIRE_WORKER = "retire_worker",
    REVOKE = "revoke",
    SCAN_ACTIVE = "scan_active",
    SLOT_HOLDERS = "slot_holders",
    UPDATE_ACTION = "update_action",
    UPSERT_QUEUE_STATS = "upsert_queue_stats",
    UPSERT_TOTALS = "upsert_totals",
    VIOLATIONS = "violations",
    WORKERS = "workers",
    WORKERS_OVER = "workers_over",
    WORKER_ENDS = "worker_ends",
    WORKER_HOLDS = "worker_holds",
}
