-- Everything Attune keeps. The words of the states mirror `attune_core::Status`; a test compares.

CREATE SCHEMA IF NOT EXISTS attune;

-- The number of partitions is fixed when a cluster is made: it decides where every action lives.
CREATE TABLE attune.cluster (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    partitions integer NOT NULL CHECK (partitions BETWEEN 1 AND 256),
    created    timestamptz NOT NULL DEFAULT now()
);

-- One row per partition. The row is both the lease and the fence: every write of an owner locks
-- it FOR SHARE and compares the epoch, every change of hands raises the epoch. Each commit and
-- each renewal makes a new version of a row, so most of a page is kept free for them (HOT).
CREATE TABLE attune.partition_lease (
    partition    integer PRIMARY KEY,
    owner        uuid,
    owner_name   text,
    epoch        bigint NOT NULL DEFAULT 0 CHECK (epoch BETWEEN 0 AND 8388607),
    expires_at   timestamptz,
    wanted_owner uuid,
    updated_at   timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- One row per worker process, renewed by it. Never renewed again once it has expired.
CREATE TABLE attune.worker_lease (
    worker     uuid PRIMARY KEY,
    name       text NOT NULL,
    pool       text NOT NULL,
    slots      integer NOT NULL,
    expires_at timestamptz NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE attune.pack (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ref     text COLLATE "C" NOT NULL UNIQUE,
    created timestamptz NOT NULL DEFAULT now()
);

-- Refs sort by their bytes everywhere, so that pages join in every locale.
CREATE TABLE attune.action (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ref       text COLLATE "C" NOT NULL UNIQUE,
    pack      bigint NOT NULL REFERENCES attune.pack (id),
    partition integer NOT NULL,
    version   bigint NOT NULL,
    spec      jsonb NOT NULL,
    created   timestamptz NOT NULL DEFAULT now(),
    updated   timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX action_partition ON attune.action (partition);

-- Every version of every policy: the newest is in force, the others say who changed what.
-- `target` is the ref of a pack or action, the name of a user, or empty for the global scope.
CREATE TABLE attune.policy (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope      text NOT NULL CHECK (scope IN ('global', 'pack', 'action', 'user')),
    target     text COLLATE "C" NOT NULL,
    version    bigint NOT NULL,
    spec       jsonb NOT NULL,
    changed_by text NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (scope, target, version)
);

-- What waits and what holds a slot.
--
-- A row is inserted, updated twice (grant, claim) and deleted. Updates stay HOT because no index
-- covers a column that they change (so none on status, ever) and because most of each page is
-- kept free: one batch updates every row of a page in one statement, which needs room for a
-- second, longer version of all of them.
-- No foreign keys: actions are never deleted, and the check would lock the action's row for every
-- execution. One CHECK only: the server parses each of them anew for every statement. `json` keeps
-- the text that the client sent and accepts all JSON, where `jsonb` refuses some; what cannot be
-- stored would hold a whole batch back.
CREATE TABLE attune.execution_active (
    id               bigint PRIMARY KEY,
    action           bigint NOT NULL,
    created          timestamptz NOT NULL,
    requested_at     timestamptz,
    started_at       timestamptz,
    not_before       timestamptz,
    grant_no         bigint,
    request_id       uuid NOT NULL,
    worker           uuid,
    attempt          integer NOT NULL,
    timeout_seconds  integer,
    priority         smallint NOT NULL,
    cancel_requested boolean NOT NULL DEFAULT false,
    status           text NOT NULL CHECK (status IN ('queued', 'requested', 'running')),
    action_ref       text NOT NULL,
    enforcement_id   text,
    requested_by     text,
    group_key        text,
    labels           json,
    parameters       json NOT NULL
) WITH (
    fillfactor = 40,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX execution_active_list ON attune.execution_active (created DESC, id DESC);
CREATE INDEX execution_active_action ON attune.execution_active (action, created DESC, id DESC);

-- What has ended: written once, dropped by the day. The CHECK on status lets the planner leave
-- the history out where a query asks only for what is active.
CREATE TABLE attune.execution_history (
    id               bigint NOT NULL,
    action           bigint NOT NULL,
    created          timestamptz NOT NULL,
    requested_at     timestamptz,
    started_at       timestamptz,
    finished_at      timestamptz NOT NULL,
    not_before       timestamptz,
    grant_no         bigint,
    request_id       uuid NOT NULL,
    worker           uuid,
    attempt          integer NOT NULL,
    timeout_seconds  integer,
    exit_code        integer,
    priority         smallint NOT NULL,
    cancel_requested boolean NOT NULL,
    status           text NOT NULL CHECK (status IN (
        'succeeded', 'failed', 'timed_out', 'cancelled', 'expired', 'rejected', 'abandoned')),
    action_ref       text NOT NULL,
    enforcement_id   text,
    requested_by     text,
    group_key        text,
    labels           json,
    parameters       json NOT NULL,
    result           json,
    error            text,
    stdout           text,
    stderr           text
) PARTITION BY RANGE (finished_at);
CREATE INDEX execution_history_id ON attune.execution_history (id);
CREATE INDEX execution_history_list ON attune.execution_history (created DESC, id DESC);
CREATE INDEX execution_history_action
    ON attune.execution_history (action, created DESC, id DESC);

-- Catches what no day takes, so that an end can always be written.
CREATE TABLE attune.execution_history_default PARTITION OF attune.execution_history DEFAULT;

-- Every execution, for people and for the API.
CREATE VIEW attune.execution AS
SELECT id, action, action_ref, status, created, requested_at, started_at,
       NULL::timestamptz AS finished_at, priority, attempt, grant_no, request_id,
       enforcement_id, requested_by, group_key, labels, parameters, not_before,
       timeout_seconds, cancel_requested, worker, NULL::json AS result, NULL::text AS error,
       NULL::integer AS exit_code, NULL::text AS stdout, NULL::text AS stderr
FROM attune.execution_active
UNION ALL
SELECT id, action, action_ref, status, created, requested_at, started_at,
       finished_at, priority, attempt, grant_no, request_id,
       enforcement_id, requested_by, group_key, labels, parameters, not_before,
       timeout_seconds, cancel_requested, worker, result, error,
       exit_code, stdout, stderr
FROM attune.execution_history;

-- Which execution a request led to, kept for a day. Rows arrive in the order of `created`, so a
-- block range index finds the old ones at next to no cost for each insert.
CREATE TABLE attune.request (
    request_id   uuid PRIMARY KEY,
    execution_id bigint NOT NULL,
    digest       bigint NOT NULL,
    created      timestamptz NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX request_created ON attune.request
    USING brin (created) WITH (pages_per_range = 32, autosummarize = on);

-- What has gone through each queue, written with the batch that changed it.
CREATE TABLE attune.queue_totals (
    action    bigint PRIMARY KEY,
    enqueued  bigint NOT NULL,
    completed bigint NOT NULL,
    cancelled bigint NOT NULL,
    expired   bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The latest snapshot of each queue, for people who look with SQL.
CREATE TABLE attune.queue_stats (
    action_id          bigint PRIMARY KEY,
    queue_length       bigint NOT NULL,
    active_count       bigint NOT NULL,
    max_concurrent     integer,
    oldest_enqueued_at timestamptz,
    total_enqueued     bigint NOT NULL,
    total_completed    bigint NOT NULL,
    total_cancelled    bigint NOT NULL DEFAULT 0,
    total_expired      bigint NOT NULL DEFAULT 0,
    version            bigint NOT NULL,
    last_updated       timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Makes the history's partitions for today and the `ahead` days after it (UTC days).
--
-- A day is made on its own and then attached: attaching blocks neither writes nor reads of the
-- other days, where CREATE TABLE … PARTITION OF would hold all of them up. Only the default
-- partition is locked, for a moment. The advisory lock lets one caller work at a time.
CREATE FUNCTION attune.make_history_days(ahead integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    today date := (now() AT TIME ZONE 'UTC')::date;
    day   date;
    child text;
    lower timestamptz;
    upper timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('attune.execution_history', 0));
    -- While this waits for the readers of the default partition, later readers wait for it.
    PERFORM set_config('lock_timeout', '3s', true);
    FOR day IN SELECT today + n FROM generate_series(0, ahead) AS n LOOP
        child := 'execution_history_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('attune.' || child) IS NOT NULL;
        lower := day::timestamp AT TIME ZONE 'UTC';
        upper := (day + 1)::timestamp AT TIME ZONE 'UTC';
        EXECUTE format('CREATE TABLE attune.%I (LIKE attune.execution_history INCLUDING ALL)', child);
        -- Ends of today that came before their partition did lie in the default one. While they
        -- move, nobody may add another.
        IF day <= today THEN
            LOCK TABLE attune.execution_history_default IN ACCESS EXCLUSIVE MODE;
            EXECUTE format(
                'WITH moved AS (
                     DELETE FROM attune.execution_history_default
                     WHERE finished_at >= $1 AND finished_at < $2 RETURNING *)
                 INSERT INTO attune.%I SELECT * FROM moved', child)
                USING lower, upper;
        END IF;
        EXECUTE format(
            'ALTER TABLE attune.execution_history ATTACH PARTITION attune.%I
             FOR VALUES FROM (%L) TO (%L)', child, lower, upper);
    END LOOP;
END;
$$;

-- Drops the oldest day of the history that ended before `cutoff`; false when there is none, or
-- when it is in use: dropping must wait for every reader of the history, and meanwhile every
-- writer would wait for it, so it gives up after a moment and is tried again later.
CREATE FUNCTION attune.drop_history_day(cutoff timestamptz) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    child text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('attune.execution_history', 0));
    SELECT c.relname INTO child
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'attune.execution_history'::regclass
      AND c.relname ~ '^execution_history_\d{8}$'
      AND (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC' <= cutoff
    ORDER BY c.relname LIMIT 1;
    IF child IS NULL THEN
        RETURN false;
    END IF;
    PERFORM set_config('lock_timeout', '250ms', true);
    EXECUTE format('DROP TABLE attune.%I', child);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END;
$$;
