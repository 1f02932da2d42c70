-- As find_parameters_active.sql, in some days of the history: see find_ended.sql.
SELECT id, parameters::text
FROM attune.execution_history
WHERE id = $1::bigint
  AND ($2::timestamptz IS NULL OR finished_at >= $2::timestamptz)
  AND ($3::timestamptz IS NULL OR finished_at < $3::timestamptz)
