-- As find_active.sql, of columns that are never long: what is said about an execution must not need
-- what it was given, which may be damaged.
SELECT id, status, attempt, worker FROM attune.execution_active WHERE id = $1::bigint
