-- What has never been owned is free since its row was made.
SELECT partition, owner, owner_name, epoch, coalesce(expires_at, updated_at) AS expires_at,
       wanted_owner, clock_timestamp() AS now
FROM attune.partition_lease ORDER BY partition
