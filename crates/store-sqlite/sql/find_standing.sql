-- What is said about an execution must not need what it was given, which may be damaged.
SELECT status, attempt, worker
  FROM execution
 WHERE id = ?1
