-- One round of an owner: everything or nothing, in one statement and so in one transaction.
--
-- The fence comes first. It locks the lease rows FOR KEY SHARE. The epoch is part of a key
-- (partition_lease_epoch), so a takeover, which changes it, waits until this statement has ended,
-- and a statement that had to wait for a takeover sees the new epoch and misses; a renewal leaves
-- the epoch as it is, and neither waits for the other, however long this takes. A plain read would
-- compare an epoch that changes before the write. Every write below asks `held`, so a single
-- missing fence holds all of them back; `held` needs all of `fence`, so nothing is written
-- before every lock is taken.
--
-- All parts see one snapshot, but UPDATE and DELETE follow a row to its newest version and check
-- it again, so what another run of this batch commits in between is seen. The ids are sorted, by the
-- caller and by the index scan: the two lock rows in the same order.
--
-- No plan may depend on how many rows the planner believes the active executions to have: they
-- come and go, and it is always wrong. So no table is joined with an array. A row is found by
-- `id = ANY(ids)`, for which there is no plan but the index, and its values by the place of its
-- id among the sorted ids: `width_bucket` finds that by bisection, and a subscript of an array
-- of fixed-width values without NULLs is one step. Only the ends need a join (with each other:
-- texts have no fixed width), and the session leaves no join but the hash join (sessions.rs).
-- Elsewhere arrays are unnested in select lists and not in FROM: there, each array of
-- `unnest(a, b, …)` goes through a store of its own, which costs a fifth of the whole statement.
--
-- `ON CONFLICT` writes each row in two steps, and a second record to the log, so the lines marked
-- AGAIN are only for a batch of which something is there already, be it from an earlier run of it or
-- because two actions use one request id at the same moment: whoever runs this as it stands gets a
-- unique violation then, and nothing is written.
--
-- Most rounds accept nothing, and preparing and ending each part costs as much as its work on one
-- row. So what stands between ACCEPTS and ACCEPTED is left out then, with its parameters; likewise METERS to
-- METERED where nothing is counted for a limit, and PROGRESS to PROGRESSED where no operation goes on. The
-- parameters of what is left follow one another.
--
-- What is accepted, granted and ended has the owner's time, $4: this clock may have been set, and a
-- row of a day that is not its own is dropped with that day, or not found.
WITH fence AS MATERIALIZED (
    SELECT l.partition
    FROM attune.partition_lease l
    WHERE l.partition = ANY($2::integer[])
      AND l.epoch = ($3::bigint[])[width_bucket(l.partition, $2::integer[])]
      AND l.owner = $1::uuid
    ORDER BY l.partition
    FOR KEY SHARE
),
held AS MATERIALIZED (
    SELECT count(*) = cardinality($2::integer[]) AS fully FROM fence
),
-- ACCEPTS
-- Again: an id that is there already was written by the first run of this very batch.
inserted AS (
    INSERT INTO attune.execution_active (
        id, action, created, requested_at, not_before, grant_no, request_id, attempt,
        timeout_seconds, priority, status, action_ref, enforcement_id, requested_by, group_key,
        labels, parameters, requeue_of, demand, cancel_requested, worker)
    SELECT n.id, n.action, $4::timestamptz,
           CASE WHEN n.status = 'requested' OR n.worker IS NOT NULL THEN $4::timestamptz END, n.not_before,
           n.grant_no, n.request_id, n.attempt, n.timeout_seconds, n.priority, n.status,
           n.action_ref, n.enforcement_id, n.requested_by, n.group_key, n.labels::json,
           n.parameters::json, n.requeue_of, n.demand, n.cancel_requested, n.worker
    FROM (
        SELECT
            unnest($31::bigint[]) AS id, unnest($32::bigint[]) AS action,
            unnest($33::uuid[]) AS request_id, unnest($35::text[]) AS status,
            unnest($36::integer[]) AS attempt, unnest($37::bigint[]) AS grant_no,
            unnest($38::smallint[]) AS priority, unnest($39::text[]) AS action_ref,
            unnest($40::text[]) AS enforcement_id, unnest($41::text[]) AS requested_by,
            unnest($42::text[]) AS group_key, unnest($43::text[]) AS labels,
            unnest($44::text[]) AS parameters, unnest($45::timestamptz[]) AS not_before,
            unnest($46::integer[]) AS timeout_seconds, unnest($47::bigint[]) AS requeue_of,
            unnest($48::bytea[]) AS demand, unnest($49::boolean[]) AS cancel_requested,
            unnest($50::uuid[]) AS worker
    ) AS n
    WHERE (SELECT fully FROM held)
    -- AGAIN: ON CONFLICT (id) DO NOTHING
),
-- The history has no unique index over its days. The request row, written by the same statement,
-- tells whether an instant end was written before; maybe yesterday.
instant AS (
    INSERT INTO attune.execution_history (
        id, action, created, finished_at, not_before, grant_no, request_id, attempt,
        timeout_seconds, exit_code, priority, cancel_requested, status, action_ref,
        enforcement_id, requested_by, group_key, labels, parameters, result, error, stdout, stderr,
        requeue_of, end_code)
    SELECT n.id, n.action, $4::timestamptz, $4::timestamptz, n.not_before, n.grant_no,
           n.request_id, n.attempt, n.timeout_seconds, n.exit_code, n.priority, false, n.final_status, n.action_ref,
           n.enforcement_id, n.requested_by, n.group_key, n.labels::json, n.parameters::json,
           n.result::json, n.error, n.stdout, n.stderr, n.requeue_of, n.end_code
    FROM (
        SELECT
            unnest($51::bigint[]) AS id, unnest($52::bigint[]) AS action,
            unnest($53::uuid[]) AS request_id, unnest($55::text[]) AS status,
            unnest($56::integer[]) AS attempt, unnest($57::bigint[]) AS grant_no,
            unnest($58::smallint[]) AS priority, unnest($59::text[]) AS action_ref,
            unnest($60::text[]) AS enforcement_id, unnest($61::text[]) AS requested_by,
            unnest($62::text[]) AS group_key, unnest($63::text[]) AS labels,
            unnest($64::text[]) AS parameters, unnest($65::timestamptz[]) AS not_before,
            unnest($66::integer[]) AS timeout_seconds, unnest($67::bigint[]) AS requeue_of,
            unnest($68::text[]) AS final_status, unnest($69::text[]) AS result,
            unnest($70::text[]) AS error, unnest($71::integer[]) AS exit_code,
            unnest($72::text[]) AS stdout, unnest($73::text[]) AS stderr,
            unnest($74::text[]) AS end_code
    ) AS n
    WHERE (SELECT fully FROM held)
      AND 0 = (
        -- A count, because NOT EXISTS would become a join.
        SELECT count(*) FROM attune.request r
        WHERE r.request_id = n.request_id AND r.execution_id = n.id)
),
-- Each day has a unique index of its own, and none spans them, so none can be named here.
remembered AS (
    INSERT INTO attune.request (request_id, execution_id, digest, created)
    SELECT r.request_id, r.id, r.digest, $4::timestamptz
    FROM (
        SELECT
            unnest($33::uuid[] || $53::uuid[]) AS request_id,
            unnest($31::bigint[] || $51::bigint[]) AS id,
            unnest($34::bigint[] || $54::bigint[]) AS digest
    ) AS r
    WHERE (SELECT fully FROM held)
    -- AGAIN: ON CONFLICT DO NOTHING
),
-- ACCEPTED
-- METERS
-- The whole state of each, so that writing it twice is the same as once. The rows stay on their pages:
-- half of each is free for that, and no other index names them.
metered AS (
    INSERT INTO attune.meter (partition, limit_id, key, state, expires_at, written_at)
    SELECT m.partition, m.limit_id, m.key, m.state, m.expires_at, clock_timestamp()
    FROM (
        SELECT
            unnest($75::integer[]) AS partition, unnest($76::text[]) AS limit_id,
            unnest($77::bytea[]) AS key, unnest($78::bytea[]) AS state,
            unnest($79::timestamptz[]) AS expires_at
    ) AS m
    WHERE (SELECT fully FROM held)
    ON CONFLICT (partition, limit_id, key) DO UPDATE
    SET state = excluded.state, expires_at = excluded.expires_at, written_at = excluded.written_at
),
-- METERED
-- PROGRESS
-- How far operations are, as it is then and not by how much it changed, so that a batch that is written
-- twice counts once.
progressed AS (
    UPDATE attune.operation_progress p SET
        upto = w.upto, cursor = w.cursor, matched = w.matched, done = w.done, skipped = w.skipped,
        state = w.state
    FROM (
        SELECT
            unnest($80::bigint[]) AS operation, unnest($81::integer[]) AS partition,
            unnest($82::bigint[]) AS upto, unnest($83::bigint[]) AS cursor,
            unnest($84::bigint[]) AS matched, unnest($85::bigint[]) AS done,
            unnest($86::bigint[]) AS skipped, unnest($87::text[]) AS state
    ) AS w
    WHERE (SELECT fully FROM held) AND p.operation = w.operation AND p.partition = w.partition
),
-- PROGRESSED
-- A grant applies to what waits or has a lower attempt. Where the attempt is the same and the
-- slot is held, the grant was written before, and its worker may have started it since: nothing
-- changes (and the caller loads the body). A row with a higher attempt is left alone. The
-- smallest number stands for a grant without a number, the nil id for one without a worker. Whoever is granted
-- ahead of its slot goes on waiting ($11), and keeps the number of that grant when it has its slot.
granted AS (
    UPDATE attune.execution_active e SET
        status = CASE WHEN ($11::boolean[])[width_bucket(e.id, $6::bigint[])] THEN 'queued' ELSE 'requested' END,
        attempt = ($7::integer[])[width_bucket(e.id, $6::bigint[])],
        grant_no = coalesce(nullif(
            ($8::bigint[])[width_bucket(e.id, $6::bigint[])], -9223372036854775808), e.grant_no),
        cancel_requested = ($9::boolean[])[width_bucket(e.id, $6::bigint[])],
        requested_at = $4::timestamptz,
        worker = nullif(
            ($10::uuid[])[width_bucket(e.id, $6::bigint[])],
            '00000000-0000-0000-0000-000000000000'),
        started_at = NULL
    WHERE (SELECT fully FROM held) AND e.id = ANY($6::bigint[])
      AND e.attempt <= ($7::integer[])[width_bucket(e.id, $6::bigint[])]
      AND (e.status = 'queued'
           OR e.attempt < ($7::integer[])[width_bucket(e.id, $6::bigint[])])
    RETURNING e.id, e.parameters::text AS parameters, e.timeout_seconds
),
-- Slots taken back, what its worker says to have started, and marks alone, which change nothing but the
-- mark. The beginning of 1970 stands for no start. Only the attempt that holds the slot can start, and it
-- does once; a slot that is kept is held by none.
changed AS (
    UPDATE attune.execution_active e SET
        cancel_requested = ($15::boolean[])[width_bucket(e.id, $12::bigint[])],
        status = CASE WHEN ($14::boolean[])[width_bucket(e.id, $12::bigint[])]
            THEN 'queued'
            WHEN ($16::timestamptz[])[width_bucket(e.id, $12::bigint[])] > 'epoch'
             AND e.attempt = ($13::integer[])[width_bucket(e.id, $12::bigint[])]
             AND e.status = 'requested' AND e.kept_until IS NULL
            THEN 'running' ELSE e.status END,
        attempt = CASE WHEN ($14::boolean[])[width_bucket(e.id, $12::bigint[])]
            THEN ($13::integer[])[width_bucket(e.id, $12::bigint[])] ELSE e.attempt END,
        worker = CASE WHEN ($14::boolean[])[width_bucket(e.id, $12::bigint[])]
            THEN NULL ELSE e.worker END,
        started_at = CASE WHEN ($14::boolean[])[width_bucket(e.id, $12::bigint[])]
            THEN NULL
            WHEN ($16::timestamptz[])[width_bucket(e.id, $12::bigint[])] > 'epoch'
             AND e.attempt = ($13::integer[])[width_bucket(e.id, $12::bigint[])]
             AND e.status = 'requested' AND e.kept_until IS NULL
            THEN ($16::timestamptz[])[width_bucket(e.id, $12::bigint[])] ELSE e.started_at END
    WHERE (SELECT fully FROM held) AND e.id = ANY($12::bigint[])
      AND e.attempt <= ($13::integer[])[width_bucket(e.id, $12::bigint[])]
),
gone AS (
    DELETE FROM attune.execution_active e
    WHERE (SELECT fully FROM held) AND e.id = ANY($17::bigint[])
    RETURNING e.id, e.action, e.created, e.requested_at, e.started_at, e.not_before, e.grant_no,
              e.request_id, e.worker, e.attempt, e.timeout_seconds, e.priority,
              e.cancel_requested, e.action_ref, e.enforcement_id, e.requested_by, e.group_key,
              e.labels, e.parameters, e.requeue_of, e.last_error
),
ended AS (
    INSERT INTO attune.execution_history (
        id, action, created, requested_at, started_at, finished_at, not_before, grant_no,
        request_id, worker, attempt, timeout_seconds, exit_code, priority, cancel_requested,
        status, action_ref, enforcement_id, requested_by, group_key, labels, parameters, result,
        error, stdout, stderr, requeue_of, last_error, end_code)
    SELECT g.id, g.action, g.created, g.requested_at,
           coalesce(g.started_at, o.began),
           -- It may have been an owner before whose clock was a little ahead.
           CASE WHEN g.started_at > $4::timestamptz
                 AND g.started_at < $4::timestamptz + interval '5 seconds'
               THEN g.started_at ELSE $4::timestamptz END, g.not_before,
           g.grant_no, g.request_id, g.worker, g.attempt, g.timeout_seconds, o.exit_code,
           g.priority, g.cancel_requested, o.final_status, g.action_ref, g.enforcement_id,
           g.requested_by, g.group_key, g.labels, g.parameters, o.result::json, o.error,
           o.stdout, o.stderr, g.requeue_of, g.last_error, o.end_code
    FROM (
        SELECT
            unnest($17::bigint[]) AS id, unnest($18::text[]) AS final_status,
            unnest($19::text[]) AS result, unnest($20::text[]) AS error,
            unnest($21::integer[]) AS exit_code, unnest($22::text[]) AS stdout,
            unnest($23::text[]) AS stderr, unnest($24::text[]) AS end_code,
            unnest($25::timestamptz[]) AS began
    ) AS o
    JOIN gone g ON g.id = o.id
),
counted AS (
    UPDATE attune.queue_totals t SET
        enqueued = ($27::bigint[])[width_bucket(t.action, $26::bigint[])],
        completed = ($28::bigint[])[width_bucket(t.action, $26::bigint[])],
        cancelled = ($29::bigint[])[width_bucket(t.action, $26::bigint[])],
        expired = ($30::bigint[])[width_bucket(t.action, $26::bigint[])]
    WHERE (SELECT fully FROM held) AND t.action = ANY($26::bigint[])
    RETURNING t.action
),
-- An action's first execution makes its row.
counted_first AS (
    INSERT INTO attune.queue_totals (action, enqueued, completed, cancelled, expired)
    SELECT n.action, n.enqueued, n.completed, n.cancelled, n.expired
    FROM (
        SELECT
            unnest($26::bigint[]) AS action, unnest($27::bigint[]) AS enqueued,
            unnest($28::bigint[]) AS completed, unnest($29::bigint[]) AS cancelled,
            unnest($30::bigint[]) AS expired
    ) AS n
    WHERE (SELECT fully FROM held)
      AND (SELECT count(*) FROM counted) < cardinality($26::bigint[])
      AND NOT EXISTS (SELECT FROM counted c WHERE c.action = n.action)
    -- AGAIN: ON CONFLICT (action) DO UPDATE SET enqueued = excluded.enqueued, completed = excluded.completed, cancelled = excluded.cancelled, expired = excluded.expired
)
-- One row without an id tells how it went; the others are the bodies of the grants, as far as they
-- have $5 bytes together.
SELECT NULL::bigint AS id, NULL::text AS parameters, NULL::integer AS timeout_seconds,
       ARRAY(SELECT partition FROM fence) AS held, (SELECT count(*) FROM gone) AS ended
UNION ALL
SELECT id, CASE WHEN sum(octet_length(parameters)) OVER (ORDER BY id) <= $5::bigint THEN parameters END,
       timeout_seconds, NULL, NULL
FROM granted
