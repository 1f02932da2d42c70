-- What has never been owned is free since its row was made. A lease is as long as it was when it
-- was last renewed.
SELECT partition, owner, owner_name, epoch, renewals, coalesce(expires_at, updated_at) AS expires_at,
       updated_at, wanted_owner, clock_timestamp() AS now,
       CASE WHEN trouble_epoch = epoch THEN trouble END AS trouble, trouble_since
FROM attune.partition_lease ORDER BY partition
