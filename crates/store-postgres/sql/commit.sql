-- One round of an owner: everything or nothing, in one statement and so in one transaction.
--
-- The fence comes first. It locks the lease rows FOR SHARE: a takeover (an UPDATE of the row)
-- waits until this statement has ended, and a statement that had to wait for a takeover sees the
-- new epoch and misses. FOR KEY SHARE would not hold a takeover back, and a plain read would
-- compare an epoch that changes before the write. Every write below asks `held`, so a single
-- missing fence holds all of them back; `held` needs all of `fence`, so nothing is written
-- before every lock is taken.
--
-- All parts see one snapshot, but UPDATE and DELETE follow a row to its newest version and check
-- it again, so a claim that commits in between is seen. Rows are locked in the order of the
-- arrays, which the caller sorts by id, as claims are: so the two do not deadlock.
--
-- The session forces a generic plan and switches hash and merge joins and sequential scans off
-- (see sessions.rs): arrays have no statistics, and the right plan is always one index probe for
-- each element.
WITH fence AS MATERIALIZED (
    SELECT l.partition
    FROM unnest($2::integer[], $3::bigint[]) AS f (partition, epoch)
    JOIN attune.partition_lease l ON l.partition = f.partition
    WHERE l.owner = $1::uuid AND l.epoch = f.epoch
    ORDER BY l.partition
    FOR SHARE OF l
),
held AS MATERIALIZED (
    SELECT count(*) = cardinality($2::integer[]) AS fully FROM fence
),
-- An id that is there already was written by the first run of this very batch.
inserted AS (
    INSERT INTO attune.execution_active (
        id, action, created, requested_at, not_before, grant_no, request_id, attempt,
        timeout_seconds, priority, status, action_ref, enforcement_id, requested_by, group_key,
        labels, parameters)
    SELECT n.id, n.action, now(), CASE WHEN n.status = 'requested' THEN now() END, n.not_before,
           n.grant_no, n.request_id, n.attempt, n.timeout_seconds, n.priority, n.status,
           n.action_ref, n.enforcement_id, n.requested_by, n.group_key, n.labels::json,
           n.parameters::json
    FROM unnest(
        $4::bigint[], $5::bigint[], $6::uuid[], $8::text[], $9::integer[], $10::bigint[],
        $11::smallint[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[],
        $17::text[], $18::timestamptz[], $19::integer[]
    ) AS n (
        id, action, request_id, status, attempt, grant_no,
        priority, action_ref, enforcement_id, requested_by, group_key, labels,
        parameters, not_before, timeout_seconds)
    WHERE (SELECT fully FROM held)
    ON CONFLICT (id) DO NOTHING
),
-- The history has no unique index over its days. The request row, written by the same statement,
-- tells whether an instant end was written before.
instant AS (
    INSERT INTO attune.execution_history (
        id, action, created, finished_at, not_before, grant_no, request_id, attempt,
        timeout_seconds, exit_code, priority, cancel_requested, status, action_ref,
        enforcement_id, requested_by, group_key, labels, parameters, result, error, stdout, stderr)
    SELECT n.id, n.action, now(), now(), n.not_before, n.grant_no, n.request_id, n.attempt,
           n.timeout_seconds, n.exit_code, n.priority, false, n.final_status, n.action_ref,
           n.enforcement_id, n.requested_by, n.group_key, n.labels::json, n.parameters::json,
           n.result::json, n.error, n.stdout, n.stderr
    FROM unnest(
        $20::bigint[], $21::bigint[], $22::uuid[], $24::text[], $25::integer[], $26::bigint[],
        $27::smallint[], $28::text[], $29::text[], $30::text[], $31::text[], $32::text[],
        $33::text[], $34::timestamptz[], $35::integer[],
        $36::text[], $37::text[], $38::text[], $39::integer[], $40::text[], $41::text[]
    ) AS n (
        id, action, request_id, status, attempt, grant_no,
        priority, action_ref, enforcement_id, requested_by, group_key, labels,
        parameters, not_before, timeout_seconds,
        final_status, result, error, exit_code, stdout, stderr)
    WHERE (SELECT fully FROM held)
      AND NOT EXISTS (
        SELECT FROM attune.request r
        WHERE r.request_id = n.request_id AND r.execution_id = n.id)
),
remembered AS (
    INSERT INTO attune.request (request_id, execution_id, digest, created)
    SELECT r.request_id, r.id, r.digest, now()
    FROM unnest(
        $6::uuid[] || $22::uuid[], $4::bigint[] || $20::bigint[], $7::bigint[] || $23::bigint[]
    ) AS r (request_id, id, digest)
    WHERE (SELECT fully FROM held)
    ON CONFLICT (request_id) DO NOTHING
),
-- A grant applies to what waits or has a lower attempt. Where the attempt is the same and the
-- slot is held, the grant was written before, and a worker may have claimed it since: nothing
-- changes, but the body is returned all the same. A row with a higher attempt is left alone.
changed AS (
    UPDATE attune.execution_active e SET
        cancel_requested = u.cancel_requested,
        status = CASE
            WHEN u.status = 'requested' AND (e.status = 'queued' OR e.attempt < u.attempt)
                THEN 'requested'
            WHEN u.status = 'queued' THEN 'queued'
            ELSE e.status END,
        attempt = CASE WHEN u.status IS NULL THEN e.attempt ELSE u.attempt END,
        grant_no = CASE
            WHEN u.status = 'requested' AND (e.status = 'queued' OR e.attempt < u.attempt)
                THEN u.grant_no
            ELSE e.grant_no END,
        requested_at = CASE
            WHEN u.status = 'requested' AND (e.status = 'queued' OR e.attempt < u.attempt)
                THEN now()
            ELSE e.requested_at END,
        worker = CASE
            WHEN u.status = 'queued'
              OR u.status = 'requested' AND (e.status = 'queued' OR e.attempt < u.attempt)
                THEN NULL
            ELSE e.worker END,
        started_at = CASE
            WHEN u.status = 'queued'
              OR u.status = 'requested' AND (e.status = 'queued' OR e.attempt < u.attempt)
                THEN NULL
            ELSE e.started_at END
    FROM unnest(
        $42::bigint[], $43::text[], $44::integer[], $45::bigint[], $46::boolean[]
    ) AS u (id, status, attempt, grant_no, cancel_requested)
    WHERE (SELECT fully FROM held) AND e.id = u.id AND e.attempt <= u.attempt
    RETURNING CASE WHEN u.status = 'requested' THEN e.id END AS id,
              CASE WHEN u.status = 'requested' THEN e.parameters::text END AS parameters,
              e.timeout_seconds
),
gone AS (
    DELETE FROM attune.execution_active e
    USING unnest(
        $47::bigint[], $48::text[], $49::text[], $50::text[], $51::integer[], $52::text[],
        $53::text[]
    ) AS o (id, final_status, result, error, exit_code, stdout, stderr)
    WHERE (SELECT fully FROM held) AND e.id = o.id
    RETURNING e.id, e.action, e.created, e.requested_at, e.started_at, e.not_before, e.grant_no,
              e.request_id, e.worker, e.attempt, e.timeout_seconds, e.priority,
              e.cancel_requested, e.action_ref, e.enforcement_id, e.requested_by, e.group_key,
              e.labels, e.parameters,
              o.final_status, o.result, o.error, o.exit_code, o.stdout, o.stderr
),
ended AS (
    INSERT INTO attune.execution_history (
        id, action, created, requested_at, started_at, finished_at, not_before, grant_no,
        request_id, worker, attempt, timeout_seconds, exit_code, priority, cancel_requested,
        status, action_ref, enforcement_id, requested_by, group_key, labels, parameters, result,
        error, stdout, stderr)
    SELECT id, action, created, requested_at, started_at, now(), not_before, grant_no,
           request_id, worker, attempt, timeout_seconds, exit_code, priority, cancel_requested,
           final_status, action_ref, enforcement_id, requested_by, group_key, labels, parameters,
           result::json, error, stdout, stderr
    FROM gone
),
counted AS (
    INSERT INTO attune.queue_totals (action, enqueued, completed, cancelled, expired)
    SELECT t.action, t.enqueued, t.completed, t.cancelled, t.expired
    FROM unnest($54::bigint[], $55::bigint[], $56::bigint[], $57::bigint[], $58::bigint[])
        AS t (action, enqueued, completed, cancelled, expired)
    WHERE (SELECT fully FROM held)
    ON CONFLICT (action) DO UPDATE SET
        enqueued = excluded.enqueued, completed = excluded.completed,
        cancelled = excluded.cancelled, expired = excluded.expired
)
-- One row without an id tells how it went; the others are the bodies of the grants.
SELECT NULL::bigint AS id, NULL::text AS parameters, NULL::integer AS timeout_seconds,
       ARRAY(SELECT partition FROM fence) AS held, (SELECT count(*) FROM gone) AS ended
UNION ALL
SELECT id, parameters, timeout_seconds, NULL, NULL FROM changed WHERE id IS NOT NULL
