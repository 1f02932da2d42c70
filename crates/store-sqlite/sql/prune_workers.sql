-- Removes up to ?2 workers whose lease somebody has ended, and is more than ?1 seconds old: the
-- clock by which it looks old may have stepped.
DELETE FROM worker_lease
 WHERE worker IN (
    SELECT worker FROM worker_lease
     WHERE ended AND expires_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds')
     LIMIT ?2)
