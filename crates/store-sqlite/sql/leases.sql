-- What has never been owned is free since its row was made. A lease is as long as it was when it
-- was last renewed.
SELECT partition, owner AS holder, epoch, renewals, wanted_owner,
       CASE WHEN expires_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') THEN owner END AS owner,
       CASE WHEN expires_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') THEN owner_name END
            AS owner_name,
       unixepoch(coalesce(expires_at, updated_at), 'subsec') - unixepoch('now', 'subsec')
            AS remaining,
       unixepoch(coalesce(expires_at, updated_at), 'subsec') - unixepoch(updated_at, 'subsec')
            AS ttl,
       CASE WHEN trouble_epoch = epoch THEN trouble END AS trouble, trouble_since
  FROM partition_lease
 ORDER BY partition
