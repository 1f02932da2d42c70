SELECT worker, name, pool, slots,
       unixepoch(expires_at, 'subsec') - unixepoch('now', 'subsec') AS remaining
  FROM worker_lease
 ORDER BY name, worker
