-- What holds a slot in these partitions: as much work as there are slots, however many wait. The
-- status is asked again: it is the truth, and the slots only lead to it.
SELECT e.id, e.action, e.priority, e.attempt, e.status, e.worker, e.created, e.requested_at,
       e.started_at, w.expires_at, e.cancel_requested, clock_timestamp() AS now
FROM attune.execution_active e
LEFT JOIN attune.worker_lease w ON w.worker = e.worker
WHERE e.id = ANY(ARRAY(SELECT s.id FROM attune.slot s WHERE (s.id & 255) = ANY($1::bigint[])))
  AND e.status IN ('requested', 'running')
