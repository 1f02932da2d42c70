-- What a dispatch needs of the executions whose ids are in ?1.
SELECT id, parameters, timeout_seconds
  FROM execution_active
 WHERE id IN (SELECT value FROM json_each(?1))
