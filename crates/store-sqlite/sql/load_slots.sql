-- Which of the executions ?1 hold a slot or are granted ahead of one, and whether the leases of their workers are over. CROSS
-- JOIN fixes the order of the loops: from the ids into the table.
SELECT a.id, a.action, a.priority, a.attempt, a.grant_no, a.status, a.worker,
       a.worker IS NOT NULL AND coalesce(w.ended, 1) AS worker_over,
       a.created, a.requested_at,
       unixepoch('now', 'subsec') - unixepoch(a.started_at, 'subsec') AS running_for,
       a.cancel_requested, a.unbegun, a.demand, a.front, a.kept_until, a.asker
  FROM json_each(?1) AS asked
 CROSS JOIN execution_active AS a ON a.id = asked.value
  LEFT JOIN worker_lease AS w ON w.worker = a.worker
 WHERE a.status IN ('requested', 'running') OR a.worker IS NOT NULL
