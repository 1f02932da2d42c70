-- How many executions of $1 wait.
SELECT count(*) FROM attune.execution_active WHERE asker = $1::bigint AND status = 'queued'
