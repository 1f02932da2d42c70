-- What has never been owned is free since its row was made.
SELECT partition, epoch, wanted_owner,
       CASE WHEN expires_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') THEN owner END AS owner,
       CASE WHEN expires_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') THEN owner_name END
            AS owner_name,
       unixepoch(coalesce(expires_at, updated_at), 'subsec') - unixepoch('now', 'subsec')
            AS remaining
  FROM partition_lease
 ORDER BY partition
