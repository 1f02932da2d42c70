DELETE FROM attune.worker_lease WHERE expires_at < now() - interval '1 day'
