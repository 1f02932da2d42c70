-- Which of these executions hold a slot, or are granted ahead of one: their owner believes that they do.
SELECT e.id, e.action, e.priority, e.attempt, e.grant_no, e.status, e.worker, e.created,
       e.requested_at, e.started_at, e.worker IS NOT NULL AND coalesce(w.ended, true) AS worker_over,
       e.cancel_requested, e.unbegun, e.demand, e.front, e.kept_until, e.asker, clock_timestamp() AS now
FROM attune.execution_active e
LEFT JOIN attune.worker_lease w ON w.worker = e.worker
WHERE e.id = ANY($1::bigint[]) AND (e.status IN ('requested', 'running') OR e.worker IS NOT NULL)
