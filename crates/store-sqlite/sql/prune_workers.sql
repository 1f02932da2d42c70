-- Removes up to ?2 workers whose lease ended more than ?1 seconds ago.
DELETE FROM worker_lease
 WHERE worker IN (
    SELECT worker FROM worker_lease
     WHERE expires_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds')
     LIMIT ?2)
