-- A page of one partition, action by action along the index on (action DESC, created): the rest of
-- the action $2 after ($3, $4), then the actions below it. As much work as it has rows, and no index of
-- its own that every execution would have to pay for.
SELECT id, action, priority, status, attempt, created, not_before, cancel_requested, unbegun,
       last_error IS NOT NULL AS retried, demand, front, kept_until, worker, grant_no,
       asker
FROM (
    (SELECT e.*
     FROM attune.execution_active e
     WHERE e.action = $2::bigint AND (e.created, e.id) > ($3::timestamptz, $4::bigint)
     ORDER BY e.created, e.id
     LIMIT $5::bigint)
    UNION ALL
    (SELECT e.*
     FROM attune.execution_active e
     WHERE e.action = ANY(ARRAY(
         SELECT a.id FROM attune.action a WHERE a.partition = $1::integer AND a.id < $2::bigint))
     ORDER BY e.action DESC, e.created, e.id
     LIMIT $5::bigint)
) AS page
LIMIT $5::bigint
