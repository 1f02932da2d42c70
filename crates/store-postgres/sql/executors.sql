SELECT executor, name, expires_at, clock_timestamp() AS now, renewals, cut_off
FROM attune.executor_lease ORDER BY name, executor
