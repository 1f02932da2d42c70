-- Takes what nobody owns. Only the database's clock is compared. The rows are locked in the
-- order of the partitions, as fences and renewals lock them, so that none of these deadlock; a
-- row is looked at again once its lock is free, so of two who race one finds it taken.
WITH free AS (
    SELECT partition FROM attune.partition_lease
    WHERE partition = ANY($1::integer[])
      AND (owner IS NULL OR expires_at <= clock_timestamp())
    ORDER BY partition
    FOR NO KEY UPDATE
)
UPDATE attune.partition_lease l SET
    owner = $2::uuid,
    owner_name = $3::text,
    epoch = l.epoch + 1,
    expires_at = clock_timestamp() + $4::bigint * interval '1 microsecond',
    updated_at = clock_timestamp()
FROM free WHERE l.partition = free.partition
RETURNING l.partition, l.epoch
