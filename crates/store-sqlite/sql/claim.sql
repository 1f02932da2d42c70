-- The one write that is not the owner's: the worker ?1 takes those attempts in ?2 that nobody has
-- taken. Those that it took itself are written and returned again, because the answer to its
-- first try may have been lost. Both need a lease that nobody has ended.
UPDATE execution_active AS a
   SET status = 'running', worker = ?1,
       started_at = coalesce(a.started_at, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
  FROM (SELECT value ->> 'id' AS id, value ->> 'attempt' AS attempt FROM jsonb_each(?2)) AS c
 WHERE a.id = c.id AND a.attempt = c.attempt
   AND ((a.status = 'requested' AND a.kept_until IS NULL) OR (a.status = 'running' AND a.worker = ?1))
   AND EXISTS (SELECT 1 FROM worker_lease
                WHERE worker = ?1 AND NOT ended)
RETURNING id, attempt, cancel_requested
