-- Everything in one statement: the epochs jump by $1, the attempts of what waits by $9, every lease ends, and the
-- entry says who did it. What never began counts as no try, and so neither do these. The
-- rows are locked as in acquire.sql.
WITH locked AS (
    SELECT partition FROM attune.partition_lease ORDER BY partition FOR UPDATE
),
partitions AS (
    UPDATE attune.partition_lease SET
        owner = NULL, owner_name = NULL, wanted_owner = NULL, epoch = epoch + $1::bigint,
        renewals = renewals + 1, expires_at = clock_timestamp(), updated_at = clock_timestamp()
    FROM locked WHERE partition_lease.partition = locked.partition
),
workers AS (
    UPDATE attune.worker_lease SET ended = true, expires_at = least(expires_at, clock_timestamp())
    WHERE NOT ended
),
waiting AS (
    UPDATE attune.execution_active e SET attempt = e.attempt + more.by, unbegun = e.unbegun + more.by
    FROM (
        SELECT id, greatest(0, least($9::integer, $10::integer - unbegun)) AS by
        FROM attune.execution_active WHERE status = 'queued' AND kept_until IS NULL
    ) AS more
    WHERE e.id = more.id
),
executors AS (
    DELETE FROM attune.executor_lease
)
INSERT INTO attune.audit_log (request_id, who, what, target, after, actor_kind, key_id, source_ip, via)
VALUES ($2::uuid, $3::text, $4::text, 'cluster', json_build_object('epochs', $1::bigint, 'attempts', $9::integer),
        $5::text, $6::text, $7::text, $8::text)
