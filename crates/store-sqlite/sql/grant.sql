-- Gives slots, or grants ahead of them, as decided at ?2. When a batch is written again because the answer to its first commit was lost, the
-- row shows the grant already, or its start as well: it stays as it is, and
-- granted_bodies.sql reads its body. Whoever stood ahead of its slot keeps the number of its grant. The dispatch needs the bodies of the others.
UPDATE execution_active AS a
   SET status = g.status, attempt = g.attempt, grant_no = coalesce(g.grant_no, a.grant_no),
       cancel_requested = g.cancel_requested, worker = g.worker, started_at = NULL,
       requested_at = ?2
  FROM (SELECT value ->> '$[0]' AS id, value ->> '$[1]' AS attempt, value ->> '$[2]' AS grant_no,
               value ->> '$[3]' AS cancel_requested, value ->> '$[4]' AS worker,
               value ->> '$[5]' AS status
          FROM jsonb_each(?1)) AS g
 WHERE a.id = g.id
   AND (a.attempt < g.attempt OR (a.attempt = g.attempt AND a.status = 'queued'))
RETURNING id, parameters, timeout_seconds, traceparent
