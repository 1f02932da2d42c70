-- The next ?2 rows by id, of whatever partition. The caller picks its own: who reads here owns all.
SELECT id, action, priority, status, attempt,
       created, not_before, cancel_requested, unbegun, last_error IS NOT NULL AS retried, demand,
       front, kept_until, worker, grant_no, asker
  FROM execution_active
 WHERE id > ?1
 ORDER BY id
 LIMIT ?2
