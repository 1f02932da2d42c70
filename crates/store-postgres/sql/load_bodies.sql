SELECT id, parameters::text, timeout_seconds
FROM attune.execution_active WHERE id = ANY($1::bigint[])
