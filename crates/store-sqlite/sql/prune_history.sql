-- Removes up to ?2 executions that ended more than ?1 seconds ago. What ended before then was
-- accepted before then, so the index on `created` leads to them.
DELETE FROM execution_history
 WHERE id IN (
    SELECT id FROM execution_history
     WHERE created < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds')
       AND finished_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds')
     ORDER BY created
     LIMIT ?2)
