-- The rare half: where executions ended that are not active any more.
SELECT id, status FROM attune.execution_history WHERE id = ANY($1::bigint[])
