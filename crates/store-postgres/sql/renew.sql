-- A lease that has expired but that nobody took is renewed: its epoch has not changed.
WITH mine AS (
    SELECT l.partition
    FROM unnest($2::integer[], $3::bigint[]) AS h (partition, epoch)
    JOIN attune.partition_lease l ON l.partition = h.partition AND l.epoch = h.epoch
    WHERE l.owner = $1::uuid
    ORDER BY l.partition
    FOR NO KEY UPDATE OF l
)
UPDATE attune.partition_lease l SET
    expires_at = clock_timestamp() + $4::bigint * interval '1 microsecond',
    updated_at = clock_timestamp()
FROM mine WHERE l.partition = mine.partition
RETURNING l.partition
