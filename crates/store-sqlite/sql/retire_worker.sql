-- Ends the lease of the worker ?1.
UPDATE worker_lease
   SET expires_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
 WHERE worker = ?1 AND expires_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
