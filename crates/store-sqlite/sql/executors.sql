SELECT executor, name, unixepoch(expires_at, 'subsec') - unixepoch('now', 'subsec') AS remaining,
       renewals, cut_off
  FROM executor_lease
 ORDER BY name, executor
