-- What has not been ended is watched, whatever the clock says. A row of an older program does not
-- say when it was renewed; then the time since it was registered is at least as long as its lease.
SELECT worker, pool, slots, renewals, ended,
       unixepoch(expires_at, 'subsec') - unixepoch(coalesce(renewed_at, started_at), 'subsec')
           AS ttl
  FROM worker_lease
 WHERE NOT ended OR unixepoch(expires_at, 'subsec') > unixepoch('now', 'subsec') - 3600
