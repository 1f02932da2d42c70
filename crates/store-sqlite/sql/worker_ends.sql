-- What has not been ended is watched, whatever the clock says. A row of an older program does not
-- say when it was renewed; then the time since it was registered is at least as long as its lease.
-- A lease that was ended is over: whoever had it is gone, or has said so.
-- What has been said of an end counts from when that was: the lease may have been over for long.
SELECT worker, pool, broker_user, slots, draining, renewals, ended,
       CASE WHEN ended THEN 0.0
            ELSE unixepoch(expires_at, 'subsec')
                 - unixepoch(coalesce(renewed_at, started_at), 'subsec')
       END AS ttl,
       over_at IS NOT NULL AS gone,
       CASE WHEN unixepoch(coalesce(over_at, expires_at), 'subsec') > unixepoch('now', 'subsec') - 600
            THEN begun
       END AS begun
  FROM worker_lease
 WHERE NOT ended OR unixepoch(coalesce(over_at, expires_at), 'subsec') > unixepoch('now', 'subsec') - 3600
