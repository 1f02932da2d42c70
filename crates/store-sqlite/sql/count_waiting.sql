-- How many executions of ?1 wait.
SELECT count(*) FROM execution_active WHERE asker = ?1 AND status = 'queued'
