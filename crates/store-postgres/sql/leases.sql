SELECT partition, owner, owner_name, epoch, expires_at, clock_timestamp() AS now
FROM attune.partition_lease ORDER BY partition
