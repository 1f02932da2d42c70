-- Ends the lease of the worker ?1.
UPDATE worker_lease
   SET ended = 1, expires_at = min(expires_at, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
 WHERE worker = ?1 AND NOT ended
