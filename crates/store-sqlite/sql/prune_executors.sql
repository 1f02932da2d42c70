-- Removes up to ?2 executors whose presence ended more than ?1 seconds ago.
DELETE FROM executor_lease
 WHERE executor IN (
    SELECT executor FROM executor_lease
     WHERE expires_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds')
     LIMIT ?2)
