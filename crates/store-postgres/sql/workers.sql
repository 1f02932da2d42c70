SELECT worker, name, pool, slots, expires_at, renewed_at, clock_timestamp() AS now
FROM attune.worker_lease ORDER BY name, worker
