SELECT worker, unixepoch(expires_at, 'subsec') - unixepoch('now', 'subsec') AS remaining,
       unixepoch('now', 'subsec') - unixepoch(expires_at, 'subsec') AS lost_for
  FROM worker_lease
 WHERE unixepoch(expires_at, 'subsec') > unixepoch('now', 'subsec') - 3600
