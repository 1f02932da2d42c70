-- The users and labels of the executions whose ids are in ?1: nothing that may be large.
SELECT id, requested_by, labels
  FROM execution_active
 WHERE id IN (SELECT value FROM json_each(?1))
 ORDER BY id
