SELECT executor, name, expires_at, clock_timestamp() AS now, renewals
FROM attune.executor_lease ORDER BY name, executor
