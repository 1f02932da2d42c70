SELECT partition, epoch,
       CASE WHEN expires_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') THEN owner END AS owner,
       CASE WHEN expires_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') THEN owner_name END
            AS owner_name,
       coalesce(unixepoch(expires_at, 'subsec') - unixepoch('now', 'subsec'), 0.0) AS remaining
  FROM partition_lease
 ORDER BY partition
