-- A page of the partition ?1, action by action along the index on (action, created): the rest of
-- the action ?2 after (?3, ?4), then the actions above it.
SELECT id, action, priority, status, attempt,
       created, not_before, cancel_requested, unbegun, retried, demand, front, kept_until,
       worker, grant_no, asker
  FROM (SELECT * FROM (
            SELECT id, action, priority, status, attempt, created, not_before, cancel_requested,
                   unbegun, last_error IS NOT NULL AS retried, demand, front, kept_until, worker,
                   grant_no, asker
              FROM execution_active
             WHERE action = ?2 AND (created, id) > (?3, ?4)
             ORDER BY created, id
             LIMIT ?5)
        UNION ALL
        SELECT * FROM (
            SELECT id, action, priority, status, attempt, created, not_before, cancel_requested,
                   unbegun, last_error IS NOT NULL AS retried, demand, front, kept_until, worker,
                   grant_no, asker
              FROM execution_active
             WHERE action IN (SELECT a.id FROM action AS a WHERE a.partition = ?1 AND a.id > ?2)
             ORDER BY action, created, id
             LIMIT ?5))
 LIMIT ?5
