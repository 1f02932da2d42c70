-- The worker ?1 has ended its lease, unless somebody has, or its process is gone (?3). Of what has begun (?2) only that is kept which is still granted to
-- it: the list of a worker may name much that was settled long ago.
UPDATE worker_lease
   SET ended = 1, expires_at = min(expires_at, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
       over_at = CASE WHEN ?3 THEN coalesce(over_at, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')) ELSE over_at END,
       begun = CASE
           WHEN over_at IS NOT NULL OR begun IS NOT NULL THEN begun
           WHEN ?2 IS NOT NULL THEN (
               SELECT json_group_array(json_array(a.id, a.attempt))
                 FROM json_each(?2) AS b
                 JOIN execution_active AS a ON a.id = b.value ->> 0
                WHERE a.attempt = b.value ->> 1 AND a.worker = ?1)
       END
 WHERE worker = ?1 AND (?3 OR NOT ended)
