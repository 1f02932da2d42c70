-- A lease that has expired but that nobody took is renewed: its epoch has not changed. So a commit
-- that takes long, in its fence, holds no renewal up; and a row that somebody else has locked holds
-- up no other: it is left as it is, and still is the asker's as far as can be seen.
WITH held AS (
    SELECT l.partition
    FROM unnest($2::integer[], $3::bigint[]) AS h (partition, epoch)
    JOIN attune.partition_lease l ON l.partition = h.partition AND l.epoch = h.epoch
    WHERE l.owner = $1::uuid
),
mine AS (
    SELECT l.partition
    FROM unnest($2::integer[], $3::bigint[]) AS h (partition, epoch)
    JOIN attune.partition_lease l ON l.partition = h.partition AND l.epoch = h.epoch
    WHERE l.owner = $1::uuid
    ORDER BY l.partition
    FOR NO KEY UPDATE OF l SKIP LOCKED
),
renewed AS (
    UPDATE attune.partition_lease l SET
        renewals = l.renewals + 1,
        expires_at = t.now + $4::bigint * interval '1 microsecond',
        updated_at = t.now
    FROM mine, (SELECT clock_timestamp() AS now) AS t
    WHERE l.partition = mine.partition
    RETURNING l.partition
)
SELECT partition FROM held UNION SELECT partition FROM renewed
