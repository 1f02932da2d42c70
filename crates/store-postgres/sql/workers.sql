SELECT worker, name, pool, slots, draining, expires_at, renewed_at, clock_timestamp() AS now
FROM attune.worker_lease ORDER BY name, worker
