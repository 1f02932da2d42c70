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
-- To prepare and to end a part costs as much as its work on some ten rows. So what stands between IF and END
-- of a part is only there for a batch that has it (src/commit_parts.rs), with its parameters. They have names
-- here, and numbers where it is run.
--
-- What is accepted, granted and ended has the owner's time, $at: this clock may have been set, and a
-- row of a day that is not its own is dropped with that day, or not found.
WITH fence AS MATERIALIZED (
    SELECT l.partition
    FROM attune.partition_lease l
    WHERE l.partition = ANY($partitions::integer[])
      AND l.epoch = ($epochs::bigint[])[width_bucket(l.partition, $partitions::integer[])]
      AND l.owner = $owner::uuid
    ORDER BY l.partition
    FOR KEY SHARE
),
held AS MATERIALIZED (
    SELECT count(*) = cardinality($partitions::integer[]) AS fully FROM fence
)
-- IF accepts
-- Again: an id that is there already was written by the first run of this very batch.
, inserted AS (
    INSERT INTO attune.execution_active (
        id, action, created, requested_at, grant_no, request_id, attempt, priority, status,
        action_ref, parameters, cancel_requested, worker,
        not_before, timeout_seconds, enforcement_id, requested_by, group_key, labels, requeue_of,
        demand, asker
        -- IF traced
        , traceparent
        -- END traced
    )
    SELECT n.id, n.action, $at::timestamptz,
           CASE WHEN n.status = 'requested' OR n.worker IS NOT NULL THEN $at::timestamptz END,
           n.grant_no, n.request_id,
           n.attempt, n.priority, n.status, n.action_ref, n.parameters::json,
           n.cancel_requested, n.worker,
           n.not_before, n.timeout_seconds, n.enforcement_id, n.requested_by, n.group_key,
           n.labels::json, n.requeue_of, n.demand, n.asker
           -- IF traced
           , n.traceparent
           -- END traced
    FROM (
        SELECT
            unnest($new_ids::bigint[]) AS id, unnest($new_actions::bigint[]) AS action,
            unnest($new_request_ids::uuid[]) AS request_id,
            unnest($new_statuses::text[]) AS status, unnest($new_attempts::integer[]) AS attempt,
            unnest($new_grant_numbers::bigint[]) AS grant_no,
            unnest($new_priorities::smallint[]) AS priority,
            unnest($new_refs::text[]) AS action_ref, unnest($new_parameters::text[]) AS parameters,
            unnest($new_cancels::boolean[]) AS cancel_requested,
            unnest($new_workers::uuid[]) AS worker,
            unnest($new_enforcement_ids::text[]) AS enforcement_id,
            unnest($new_requested_by::text[]) AS requested_by,
            unnest($new_groups::text[]) AS group_key, unnest($new_labels::text[]) AS labels,
            unnest($new_not_before::timestamptz[]) AS not_before,
            unnest($new_timeouts::integer[]) AS timeout_seconds,
            unnest($new_requeue_of::bigint[]) AS requeue_of, unnest($new_demands::bytea[]) AS demand,
            unnest($new_askers::bigint[]) AS asker
            -- IF traced
            , unnest($new_traceparents::text[]) AS traceparent
            -- END traced
    ) AS n
    WHERE (SELECT fully FROM held)
    -- AGAIN: ON CONFLICT (id) DO NOTHING
)
-- END accepts
-- IF instant
-- The history has no unique index over its days. The request row, written by the same statement,
-- tells whether an instant end was written before; maybe yesterday.
, instant AS (
    INSERT INTO attune.execution_history (
        id, action, created, finished_at, not_before, grant_no, request_id, attempt,
        timeout_seconds, exit_code, priority, cancel_requested, status, action_ref,
        enforcement_id, requested_by, group_key, labels, parameters, result, error, stdout, stderr,
        requeue_of, end_code, traceparent)
    SELECT n.id, n.action, $at::timestamptz, $at::timestamptz, n.not_before, n.grant_no,
           n.request_id, n.attempt, n.timeout_seconds, n.exit_code, n.priority, false, n.final_status, n.action_ref,
           n.enforcement_id, n.requested_by, n.group_key, n.labels::json, n.parameters::json,
           n.result::json, n.error, n.stdout, n.stderr, n.requeue_of, n.end_code,
           n.traceparent
    FROM (
        SELECT
            unnest($instant_ids::bigint[]) AS id, unnest($instant_actions::bigint[]) AS action,
            unnest($instant_request_ids::uuid[]) AS request_id,
            unnest($instant_attempts::integer[]) AS attempt,
            unnest($instant_grant_numbers::bigint[]) AS grant_no,
            unnest($instant_priorities::smallint[]) AS priority,
            unnest($instant_refs::text[]) AS action_ref,
            unnest($instant_enforcement_ids::text[]) AS enforcement_id,
            unnest($instant_requested_by::text[]) AS requested_by,
            unnest($instant_groups::text[]) AS group_key, unnest($instant_labels::text[]) AS labels,
            unnest($instant_parameters::text[]) AS parameters,
            unnest($instant_not_before::timestamptz[]) AS not_before,
            unnest($instant_timeouts::integer[]) AS timeout_seconds,
            unnest($instant_requeue_of::bigint[]) AS requeue_of,
            unnest($instant_statuses::text[]) AS final_status,
            unnest($instant_results::text[]) AS result, unnest($instant_errors::text[]) AS error,
            unnest($instant_exit_codes::integer[]) AS exit_code,
            unnest($instant_stdouts::text[]) AS stdout, unnest($instant_stderrs::text[]) AS stderr,
            unnest($instant_end_codes::text[]) AS end_code,
            unnest($instant_traceparents::text[]) AS traceparent
    ) AS n
    WHERE (SELECT fully FROM held)
      AND 0 = (
        -- A count, because NOT EXISTS would become a join.
        SELECT count(*) FROM attune.request r
        WHERE r.request_id = n.request_id AND r.execution_id = n.id)
)
-- END instant
-- IF accepts
-- Each day has a unique index of its own, and none spans them, so none can be named here.
, remembered AS (
    INSERT INTO attune.request (request_id, execution_id, digest, created)
    SELECT r.request_id, r.id, r.digest, $at::timestamptz
    FROM (
        SELECT
            unnest($new_request_ids::uuid[]
                -- IF instant
                || $instant_request_ids::uuid[]
                -- END instant
            ) AS request_id,
            unnest($new_ids::bigint[]
                -- IF instant
                || $instant_ids::bigint[]
                -- END instant
            ) AS id,
            unnest($new_digests::bigint[]
                -- IF instant
                || $instant_digests::bigint[]
                -- END instant
            ) AS digest
    ) AS r
    WHERE (SELECT fully FROM held)
    -- AGAIN: ON CONFLICT DO NOTHING
)
-- END accepts
-- IF meters
-- The whole state of each, so that writing it twice is the same as once. The rows stay on their pages:
-- half of each is free for that, and no other index names them.
, metered AS (
    INSERT INTO attune.meter (partition, limit_id, key, state, expires_at, written_at)
    SELECT m.partition, m.limit_id, m.key, m.state, m.expires_at, clock_timestamp()
    FROM (
        SELECT
            unnest($meter_partitions::integer[]) AS partition, unnest($meter_limits::text[]) AS limit_id,
            unnest($meter_keys::bytea[]) AS key, unnest($meter_states::bytea[]) AS state,
            unnest($meter_expires::timestamptz[]) AS expires_at
    ) AS m
    WHERE (SELECT fully FROM held)
    ON CONFLICT (partition, limit_id, key) DO UPDATE
    SET state = excluded.state, expires_at = excluded.expires_at, written_at = excluded.written_at
)
-- END meters
-- IF progress
-- How far operations are, as it is then and not by how much it changed, so that a batch that is written
-- twice counts once.
, progressed AS (
    UPDATE attune.operation_progress p SET
        upto = w.upto, cursor = w.cursor, matched = w.matched, done = w.done, skipped = w.skipped,
        state = w.state
    FROM (
        SELECT
            unnest($progress_operations::bigint[]) AS operation, unnest($progress_partitions::integer[]) AS partition,
            unnest($progress_upto::bigint[]) AS upto, unnest($progress_cursors::bigint[]) AS cursor,
            unnest($progress_matched::bigint[]) AS matched, unnest($progress_done::bigint[]) AS done,
            unnest($progress_skipped::bigint[]) AS skipped, unnest($progress_states::text[]) AS state
    ) AS w
    WHERE (SELECT fully FROM held) AND p.operation = w.operation AND p.partition = w.partition
)
-- END progress
-- IF grants
-- A grant applies to what waits or has a lower attempt. Where the attempt is the same and the
-- slot is held, the grant was written before, and its worker may have started it since: nothing
-- changes (and the caller loads the body). A row with a higher attempt is left alone. The
-- smallest number stands for a grant without a number, the nil id for one without a worker. Whoever is granted
-- ahead of its slot goes on waiting, and keeps the number of that grant when it has its slot: then its worker has
-- its body.
, granted AS (
    UPDATE attune.execution_active e SET
        status = CASE WHEN ($grant_aheads::boolean[])[width_bucket(e.id, $grant_ids::bigint[])]
            THEN 'queued' ELSE 'requested' END,
        attempt = ($grant_attempts::integer[])[width_bucket(e.id, $grant_ids::bigint[])],
        grant_no = coalesce(nullif(
            ($grant_numbers::bigint[])[width_bucket(e.id, $grant_ids::bigint[])], -9223372036854775808),
            e.grant_no),
        cancel_requested = ($grant_cancels::boolean[])[width_bucket(e.id, $grant_ids::bigint[])],
        requested_at = $at::timestamptz,
        worker = nullif(
            ($grant_workers::uuid[])[width_bucket(e.id, $grant_ids::bigint[])],
            '00000000-0000-0000-0000-000000000000'),
        started_at = NULL
    WHERE (SELECT fully FROM held) AND e.id = ANY($grant_ids::bigint[])
      AND e.attempt <= ($grant_attempts::integer[])[width_bucket(e.id, $grant_ids::bigint[])]
      AND (e.status = 'queued'
           OR e.attempt < ($grant_attempts::integer[])[width_bucket(e.id, $grant_ids::bigint[])])
    RETURNING e.id, e.timeout_seconds, e.traceparent, CASE
        WHEN ($grant_numbers::bigint[])[width_bucket(e.id, $grant_ids::bigint[])] > -9223372036854775808
        THEN e.parameters::text END AS parameters
)
-- END grants
-- IF changes
-- Slots taken back, what its worker says to have started, and marks alone, which change nothing but the
-- mark. The beginning of 1970 stands for no start. Only the attempt that holds the slot can start, and it
-- does once; a slot that is kept is held by none.
, changed AS (
    UPDATE attune.execution_active e SET
        cancel_requested = ($change_cancels::boolean[])[width_bucket(e.id, $change_ids::bigint[])],
        status = CASE WHEN ($change_takes_back::boolean[])[width_bucket(e.id, $change_ids::bigint[])]
            THEN 'queued'
            WHEN ($change_starts::timestamptz[])[width_bucket(e.id, $change_ids::bigint[])] > 'epoch'
             AND e.attempt = ($change_attempts::integer[])[width_bucket(e.id, $change_ids::bigint[])]
             AND e.status = 'requested' AND e.kept_until IS NULL
            THEN 'running' ELSE e.status END,
        attempt = CASE WHEN ($change_takes_back::boolean[])[width_bucket(e.id, $change_ids::bigint[])]
            THEN ($change_attempts::integer[])[width_bucket(e.id, $change_ids::bigint[])] ELSE e.attempt END,
        worker = CASE WHEN ($change_takes_back::boolean[])[width_bucket(e.id, $change_ids::bigint[])]
            THEN NULL ELSE e.worker END,
        started_at = CASE WHEN ($change_takes_back::boolean[])[width_bucket(e.id, $change_ids::bigint[])]
            THEN NULL
            WHEN ($change_starts::timestamptz[])[width_bucket(e.id, $change_ids::bigint[])] > 'epoch'
             AND e.attempt = ($change_attempts::integer[])[width_bucket(e.id, $change_ids::bigint[])]
             AND e.status = 'requested' AND e.kept_until IS NULL
            THEN ($change_starts::timestamptz[])[width_bucket(e.id, $change_ids::bigint[])] ELSE e.started_at END
    WHERE (SELECT fully FROM held) AND e.id = ANY($change_ids::bigint[])
      AND e.attempt <= ($change_attempts::integer[])[width_bucket(e.id, $change_ids::bigint[])]
)
-- END changes
-- IF ends
, gone AS (
    DELETE FROM attune.execution_active e
    WHERE (SELECT fully FROM held) AND e.id = ANY($end_ids::bigint[])
    RETURNING e.id, e.action, e.created, e.requested_at, e.started_at, e.not_before, e.grant_no,
              e.request_id, e.worker, e.attempt, e.timeout_seconds, e.priority,
              e.cancel_requested, e.action_ref, e.enforcement_id, e.requested_by, e.group_key,
              e.labels, e.parameters, e.requeue_of, e.last_error, e.traceparent
)
, ended AS (
    INSERT INTO attune.execution_history (
        id, action, created, requested_at, started_at, finished_at, not_before, grant_no,
        request_id, worker, attempt, timeout_seconds, exit_code, priority, cancel_requested,
        status, action_ref, enforcement_id, requested_by, group_key, labels, parameters,
        requeue_of, last_error, end_code, traceparent,
        result, error, stdout, stderr
    )
    SELECT g.id, g.action, g.created, g.requested_at,
           coalesce(g.started_at, o.began),
           -- It may have been an owner before whose clock was a little ahead.
           CASE WHEN g.started_at > $at::timestamptz
                 AND g.started_at < $at::timestamptz + interval '5 seconds'
               THEN g.started_at ELSE $at::timestamptz END, g.not_before,
           g.grant_no, g.request_id, g.worker, g.attempt, g.timeout_seconds, o.exit_code,
           g.priority, g.cancel_requested, o.final_status, g.action_ref, g.enforcement_id,
           g.requested_by, g.group_key, g.labels, g.parameters, g.requeue_of, g.last_error,
           o.end_code, g.traceparent,
           o.result::json, o.error, o.stdout, o.stderr
    FROM (
        SELECT
            unnest($end_ids::bigint[]) AS id, unnest($end_statuses::text[]) AS final_status,
            unnest($end_exit_codes::integer[]) AS exit_code,
            unnest($end_codes::text[]) AS end_code, unnest($end_began::timestamptz[]) AS began,
            unnest($end_results::text[]) AS result, unnest($end_errors::text[]) AS error,
            unnest($end_stdouts::text[]) AS stdout, unnest($end_stderrs::text[]) AS stderr
    ) AS o
    JOIN gone g ON g.id = o.id
)
-- END ends
-- IF totals
, counted AS (
    UPDATE attune.queue_totals t SET
        enqueued = ($total_enqueued::bigint[])[width_bucket(t.action, $total_actions::bigint[])],
        completed = ($total_completed::bigint[])[width_bucket(t.action, $total_actions::bigint[])],
        cancelled = ($total_cancelled::bigint[])[width_bucket(t.action, $total_actions::bigint[])],
        expired = ($total_expired::bigint[])[width_bucket(t.action, $total_actions::bigint[])]
    WHERE (SELECT fully FROM held) AND t.action = ANY($total_actions::bigint[])
    RETURNING t.action
)
-- An action's first execution makes its row.
, counted_first AS (
    INSERT INTO attune.queue_totals (action, enqueued, completed, cancelled, expired)
    SELECT n.action, n.enqueued, n.completed, n.cancelled, n.expired
    FROM (
        SELECT
            unnest($total_actions::bigint[]) AS action, unnest($total_enqueued::bigint[]) AS enqueued,
            unnest($total_completed::bigint[]) AS completed, unnest($total_cancelled::bigint[]) AS cancelled,
            unnest($total_expired::bigint[]) AS expired
    ) AS n
    WHERE (SELECT fully FROM held)
      AND (SELECT count(*) FROM counted) < cardinality($total_actions::bigint[])
      AND NOT EXISTS (SELECT FROM counted c WHERE c.action = n.action)
    -- AGAIN: ON CONFLICT (action) DO UPDATE SET enqueued = excluded.enqueued, completed = excluded.completed, cancelled = excluded.cancelled, expired = excluded.expired
)
-- END totals
-- One row without an id tells how it went; the others are the bodies of the grants, as far as they
-- have $bytes together.
SELECT NULL::bigint AS id, NULL::text AS parameters, NULL::integer AS timeout_seconds,
       ARRAY(SELECT partition FROM fence) AS held, 0::bigint
       -- IF ends
       + (SELECT count(*) FROM gone)
       -- END ends
       AS ended, NULL::text AS traceparent
-- IF grants
UNION ALL
SELECT id, CASE WHEN sum(octet_length(parameters)) OVER (ORDER BY id) <= $bytes::bigint THEN parameters END,
       timeout_seconds, NULL, NULL, traceparent
FROM granted
-- END grants
