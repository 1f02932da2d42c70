-- Along the index on (action, …): whoever holds a slot of one action is found among the active
-- executions of that action alone. An index on status would be quicker still, and would cost
-- every grant and every claim its HOT update.
SELECT e.id, e.attempt, e.status, e.requested_at, e.started_at, e.cancel_requested, e.worker,
       w.name, w.pool, w.renewed_at, w.expires_at, clock_timestamp() AS now
FROM attune.execution_active e
LEFT JOIN attune.worker_lease w ON w.worker = e.worker
WHERE e.action = $1::bigint AND e.id > $2::bigint AND e.status IN ('requested', 'running')
ORDER BY e.id
LIMIT $3::bigint
