-- Whoever holds a slot of one action, found by the slots and not among all that wait.
SELECT e.id, e.attempt, e.status, e.requested_at, e.started_at, e.cancel_requested, e.worker,
       w.name, w.pool, w.renewed_at, w.expires_at, clock_timestamp() AS now
FROM attune.execution_active e
LEFT JOIN attune.worker_lease w ON w.worker = e.worker
WHERE e.id = ANY(ARRAY(
    SELECT s.id FROM attune.slot s WHERE s.action = $1::bigint AND s.id > $2::bigint
    ORDER BY s.id LIMIT $3::bigint))
  AND e.status IN ('requested', 'running')
ORDER BY e.id
