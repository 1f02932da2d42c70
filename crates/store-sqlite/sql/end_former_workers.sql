-- The workers of an earlier process.
UPDATE worker_lease
   SET ended = 1, expires_at = min(expires_at, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
 WHERE NOT ended
