SELECT executor, name, expires_at, clock_timestamp() AS now
FROM attune.executor_lease ORDER BY name, executor
