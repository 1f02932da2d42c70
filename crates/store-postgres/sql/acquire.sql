-- Takes what nobody owns, or the asker itself in an earlier epoch. Only the database's clock is
-- compared. The rows are locked in the order of the partitions, as fences and renewals lock them,
-- so that none of these deadlock; a row is looked at again once its lock is free, so of two who
-- race one finds it taken.
--
-- While the server was away nobody could renew: after its start a lease is left to its owner
-- for as long as the lease had been (`updated_at` is when it was last renewed). What was handed
-- over to somebody else is left to that one for a third of the lease asked for here.
WITH free AS (
    SELECT partition FROM attune.partition_lease
    WHERE partition = ANY($1::integer[])
      AND (owner IS NULL
           OR owner = $2::uuid
           OR (expires_at <= clock_timestamp()
               AND pg_postmaster_start_time() + (expires_at - updated_at) <= clock_timestamp()))
      AND (wanted_owner IS NULL
           OR wanted_owner = $2::uuid
           OR updated_at <= clock_timestamp() - $4::bigint * interval '1 microsecond' / 3)
    ORDER BY partition
    FOR NO KEY UPDATE
)
UPDATE attune.partition_lease l SET
    owner = $2::uuid,
    owner_name = $3::text,
    wanted_owner = NULL,
    epoch = l.epoch + 1,
    renewals = l.renewals + 1,
    expires_at = t.now + $4::bigint * interval '1 microsecond',
    updated_at = t.now
FROM free, (SELECT clock_timestamp() AS now) AS t
WHERE l.partition = free.partition
RETURNING l.partition, l.epoch
