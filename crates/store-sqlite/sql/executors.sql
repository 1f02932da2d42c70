SELECT executor, name, unixepoch(expires_at, 'subsec') - unixepoch('now', 'subsec') AS remaining,
       renewals
  FROM executor_lease
 ORDER BY name, executor
