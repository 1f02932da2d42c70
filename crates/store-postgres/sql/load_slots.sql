-- A scan of the whole table, every few seconds: an index on status would cost every update its
-- HOT and cost more than the scan.
SELECT e.id, e.action, e.priority, e.attempt, e.status, e.worker, e.created, e.requested_at,
       e.started_at, w.expires_at, e.cancel_requested, clock_timestamp() AS now
FROM attune.execution_active e
LEFT JOIN attune.worker_lease w ON w.worker = e.worker
WHERE e.status IN ('requested', 'running') AND (e.id & 255) = ANY($1::bigint[])
