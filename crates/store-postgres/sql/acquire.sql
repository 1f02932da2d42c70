-- Takes what nobody owns, or the asker itself in an earlier epoch; no clock is asked. What was handed
-- over to somebody else is left to that one: who has seen it lie there takes it as it was observed.
-- The rows are locked FOR UPDATE, for which fences make way only when their commit has ended, and in
-- the order of the partitions, as fences and renewals lock them, so that none of these deadlock; a
-- row is looked at again once its lock is free, so of two who race one finds it taken.
WITH free AS (
    SELECT partition FROM attune.partition_lease
    WHERE partition = ANY($1::integer[])
      AND (owner IS NULL OR owner = $2::uuid)
      AND (wanted_owner IS NULL OR wanted_owner = $2::uuid)
    ORDER BY partition
    FOR UPDATE
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
