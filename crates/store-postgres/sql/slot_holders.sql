-- Whoever holds a slot of one action. Reads every execution of the action, once: nothing that a
-- grant changes is indexed, because that would cost every grant and every start its HOT update.
WITH holder AS MATERIALIZED (
    SELECT e.id, e.attempt, e.status, e.requested_at, e.started_at, e.cancel_requested, e.worker
    FROM attune.execution_active e
    WHERE e.action = $1::bigint AND e.id > $2::bigint AND e.status IN ('requested', 'running')
)
SELECT h.*, w.name, w.pool, w.renewed_at, w.expires_at, clock_timestamp() AS now
FROM holder h
LEFT JOIN attune.worker_lease w ON w.worker = h.worker
ORDER BY h.id
LIMIT $3::bigint
