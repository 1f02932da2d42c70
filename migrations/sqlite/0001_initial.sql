-- The tables of one Attune installation in one SQLite file. They carry the names and columns of
-- the schema `attune` on PostgreSQL.
--
-- Times are RFC 3339 text in UTC with six digits of a second, so that people can read them and
-- comparing the text compares the time. SQLite's clock counts milliseconds: the last three
-- digits of a time that it gave are zeros. UUIDs are text with hyphens, for the same people.
-- Statuses are the names that the wire and the API use.

CREATE TABLE cluster (
    only_row   INTEGER PRIMARY KEY CHECK (only_row = 1),
    partitions INTEGER NOT NULL CHECK (partitions BETWEEN 1 AND 256)
) STRICT;

CREATE TABLE pack (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    ref     TEXT NOT NULL UNIQUE,
    created TEXT NOT NULL
) STRICT;

-- AUTOINCREMENT: the number of an action is never given to another one.
CREATE TABLE action (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    ref       TEXT NOT NULL UNIQUE,
    pack      INTEGER NOT NULL REFERENCES pack (id),
    partition INTEGER NOT NULL CHECK (partition BETWEEN 0 AND 255),
    version   INTEGER NOT NULL,
    spec      TEXT NOT NULL CHECK (json_valid(spec)),
    created   TEXT NOT NULL,
    updated   TEXT NOT NULL
) STRICT;

CREATE INDEX action_pack ON action (pack);

-- `target` is the id of the pack or action, or the name of the user; empty for the global scope.
CREATE TABLE policy (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    scope      TEXT NOT NULL CHECK (scope IN ('global', 'pack', 'action', 'user')),
    target     TEXT NOT NULL,
    version    INTEGER NOT NULL,
    spec       TEXT NOT NULL CHECK (json_valid(spec)),
    changed_by TEXT NOT NULL,
    changed_at TEXT NOT NULL,
    UNIQUE (scope, target, version)
) STRICT;

-- What waits or holds a slot. The id has the partition in its low eight bits and the place in
-- the partition's order above them, so a scan by id is a scan in order. There is no foreign key
-- to the action: the owner has just looked it up, and the check would cost every insert.
CREATE TABLE execution_active (
    id               INTEGER PRIMARY KEY,
    action           INTEGER NOT NULL,
    action_ref       TEXT NOT NULL,
    priority         INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 4),
    status           TEXT NOT NULL CHECK (status IN ('queued', 'requested', 'running')),
    attempt          INTEGER NOT NULL,
    grant_no         INTEGER,
    request_id       TEXT NOT NULL,
    enforcement_id   TEXT,
    requested_by     TEXT,
    group_key        TEXT,
    labels           TEXT NOT NULL,
    parameters       TEXT NOT NULL,
    not_before       TEXT,
    timeout_seconds  INTEGER,
    cancel_requested INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
    worker           TEXT,
    created          TEXT NOT NULL,
    requested_at     TEXT,
    started_at       TEXT
) STRICT;

-- For lists, the newest first. Every index ends with the id by itself.
CREATE INDEX execution_active_created ON execution_active (created);
CREATE INDEX execution_active_action ON execution_active (action, created);
-- The reconciler reads the slots every few seconds; among a million that wait it must find them
-- without reading those. Unlike on PostgreSQL, an index on the status costs no more than its
-- own entry here.
CREATE INDEX execution_active_slot ON execution_active (action, created)
    WHERE status IN ('requested', 'running');

-- What has ended.
CREATE TABLE execution_history (
    id               INTEGER PRIMARY KEY,
    action           INTEGER NOT NULL,
    action_ref       TEXT NOT NULL,
    priority         INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 4),
    status           TEXT NOT NULL CHECK (status IN
        ('succeeded', 'failed', 'timed_out', 'cancelled', 'expired', 'rejected', 'abandoned')),
    attempt          INTEGER NOT NULL,
    grant_no         INTEGER,
    request_id       TEXT NOT NULL,
    enforcement_id   TEXT,
    requested_by     TEXT,
    group_key        TEXT,
    labels           TEXT NOT NULL,
    parameters       TEXT NOT NULL,
    not_before       TEXT,
    timeout_seconds  INTEGER,
    cancel_requested INTEGER NOT NULL CHECK (cancel_requested IN (0, 1)),
    worker           TEXT,
    created          TEXT NOT NULL,
    requested_at     TEXT,
    started_at       TEXT,
    finished_at      TEXT NOT NULL,
    result           TEXT,
    error            TEXT,
    exit_code        INTEGER,
    stdout           TEXT,
    stderr           TEXT
) STRICT;

-- For lists, and the first one also for retention: nothing ends before it was accepted. With the
-- status in the second, "what holds the slots of this action" reads the index alone.
CREATE INDEX execution_history_created ON execution_history (created);
CREATE INDEX execution_history_action ON execution_history (action, created, status);

-- Every execution, whichever table it is in. The casts give both arms columns of one affinity,
-- without which SQLite would not look into the arms by an index that is already in order.
CREATE VIEW execution AS
SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id, enforcement_id,
       requested_by, group_key, labels, parameters, not_before, timeout_seconds, cancel_requested,
       worker, created, requested_at, started_at, CAST(NULL AS TEXT) AS finished_at,
       CAST(NULL AS TEXT) AS result, CAST(NULL AS TEXT) AS error,
       CAST(NULL AS INTEGER) AS exit_code, CAST(NULL AS TEXT) AS stdout,
       CAST(NULL AS TEXT) AS stderr
  FROM execution_active
UNION ALL
SELECT id, action, action_ref, status, priority, attempt, grant_no, request_id, enforcement_id,
       requested_by, group_key, labels, parameters, not_before, timeout_seconds, cancel_requested,
       worker, created, requested_at, started_at, finished_at, result,
       error, exit_code, stdout, stderr
  FROM execution_history;

-- The requests of the last day. The rows lie in the order in which they came, so that the
-- oldest are found without an index on `created`.
CREATE TABLE request (
    n            INTEGER PRIMARY KEY,
    request_id   TEXT NOT NULL UNIQUE,
    execution_id INTEGER NOT NULL,
    digest       INTEGER NOT NULL,
    created      TEXT NOT NULL
) STRICT;

-- What has gone through each queue, written by the owner with every batch.
CREATE TABLE queue_totals (
    action    INTEGER PRIMARY KEY,
    enqueued  INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    expired   INTEGER NOT NULL
) STRICT;

-- Snapshots of the queues for people, written by the stats persister.
CREATE TABLE queue_stats (
    action_id          INTEGER PRIMARY KEY,
    queue_length       INTEGER NOT NULL,
    active_count       INTEGER NOT NULL,
    max_concurrent     INTEGER,
    oldest_enqueued_at TEXT,
    total_enqueued     INTEGER NOT NULL,
    total_completed    INTEGER NOT NULL,
    total_cancelled    INTEGER NOT NULL,
    total_expired      INTEGER NOT NULL,
    version            INTEGER NOT NULL,
    last_updated       TEXT NOT NULL
) STRICT;

-- The highest epoch is the last one that fits into an execution id.
CREATE TABLE partition_lease (
    partition    INTEGER PRIMARY KEY CHECK (partition BETWEEN 0 AND 255),
    owner        TEXT,
    owner_name   TEXT,
    epoch        INTEGER NOT NULL DEFAULT 0 CHECK (epoch BETWEEN 0 AND 8388607),
    expires_at   TEXT,
    wanted_owner TEXT,
    updated_at   TEXT NOT NULL,
    CHECK (owner IS NULL OR expires_at IS NOT NULL)
) STRICT;

CREATE TABLE worker_lease (
    worker     TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    pool       TEXT NOT NULL,
    slots      INTEGER NOT NULL,
    expires_at TEXT NOT NULL,
    started_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;
