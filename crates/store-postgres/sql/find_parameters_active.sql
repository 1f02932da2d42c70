-- As find_active.sql, of what it was given alone: as it was written, to be given once more.
SELECT id, parameters::text FROM attune.execution_active WHERE id = $1::bigint
