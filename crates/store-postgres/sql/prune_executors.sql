DELETE FROM attune.executor_lease WHERE expires_at < now() - interval '1 day'
