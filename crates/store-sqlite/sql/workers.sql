SELECT worker, name, pool, slots, draining,
       unixepoch(expires_at, 'subsec') - unixepoch('now', 'subsec') AS remaining,
       unixepoch('now', 'subsec') - unixepoch(renewed_at, 'subsec') AS seen_ago
  FROM worker_lease
 ORDER BY name, worker
