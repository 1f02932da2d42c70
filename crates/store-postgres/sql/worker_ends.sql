-- What has not been ended is watched, whatever the clock says. A row of an older program does not
-- say when it was renewed; then the time since it was registered is at least as long as its lease.
-- What has been said of an end counts from when that was: the lease may have been over for long.
SELECT worker, pool, broker_user, slots, draining, expires_at, coalesce(renewed_at, started_at) AS renewed_at,
       renewals, ended, over_at IS NOT NULL AS gone,
       CASE WHEN coalesce(over_at, expires_at) > clock_timestamp() - interval '10 minutes' THEN begun::text
       END AS begun
FROM attune.worker_lease
WHERE NOT ended OR coalesce(over_at, expires_at) > clock_timestamp() - interval '1 hour'
