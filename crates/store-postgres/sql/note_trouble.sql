-- Touches nothing of the lease itself: neither its renewals nor its times move. The rows are locked as
-- in renew.sql, so a commit that takes long, in its fence, does not hold it up.
WITH mine AS (
    SELECT l.partition, n.trouble, n.lasted
    FROM unnest($2::integer[], $3::bigint[], $4::text[], $5::bigint[])
        AS n (partition, epoch, trouble, lasted)
    JOIN attune.partition_lease l ON l.partition = n.partition AND l.epoch = n.epoch
    WHERE l.owner = $1::uuid
    ORDER BY l.partition
    FOR NO KEY UPDATE OF l
)
UPDATE attune.partition_lease l SET
    trouble = mine.trouble,
    trouble_since = clock_timestamp() - mine.lasted * interval '1 microsecond',
    trouble_epoch = CASE WHEN mine.trouble IS NOT NULL THEN l.epoch END
FROM mine
WHERE l.partition = mine.partition
