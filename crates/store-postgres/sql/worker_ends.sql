SELECT worker, expires_at, clock_timestamp() AS now FROM attune.worker_lease
WHERE expires_at > clock_timestamp() - interval '1 hour'
