-- A lease that has expired but that nobody took is renewed: its epoch has not changed. So a commit
-- that takes long, in its fence, holds no renewal up.
WITH mine AS (
    SELECT l.partition
    FROM unnest($2::integer[], $3::bigint[]) AS h (partition, epoch)
    JOIN attune.partition_lease l ON l.partition = h.partition AND l.epoch = h.epoch
    WHERE l.owner = $1::uuid
    ORDER BY l.partition
    FOR NO KEY UPDATE OF l
)
UPDATE attune.partition_lease l SET
    renewals = l.renewals + 1,
    expires_at = t.now + $4::bigint * interval '1 microsecond',
    updated_at = t.now
FROM mine, (SELECT clock_timestamp() AS now) AS t
WHERE l.partition = mine.partition
RETURNING l.partition
