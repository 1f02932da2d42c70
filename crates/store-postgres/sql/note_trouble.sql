-- Touches nothing of the lease itself: neither its renewals nor its times move. The rows are locked as
-- in renew.sql: a commit that takes long, in its fence, does not hold it up, and a row that somebody
-- else has locked holds up neither the others nor their renewals. It is passed over, and named.
WITH notes AS (
    SELECT *
    FROM unnest($2::integer[], $3::bigint[], $4::text[], $5::bigint[])
        AS n (partition, epoch, trouble, lasted)
),
held AS (
    SELECT l.partition
    FROM notes n
    JOIN attune.partition_lease l ON l.partition = n.partition AND l.epoch = n.epoch
    WHERE l.owner = $1::uuid
),
mine AS (
    SELECT l.partition, n.trouble, n.lasted
    FROM notes n
    JOIN attune.partition_lease l ON l.partition = n.partition AND l.epoch = n.epoch
    WHERE l.owner = $1::uuid
    ORDER BY l.partition
    FOR NO KEY UPDATE OF l SKIP LOCKED
),
noted AS (
    UPDATE attune.partition_lease l SET
        trouble = mine.trouble,
        trouble_since = clock_timestamp() - mine.lasted * interval '1 microsecond',
        trouble_epoch = CASE WHEN mine.trouble IS NOT NULL THEN l.epoch END
    FROM mine
    WHERE l.partition = mine.partition
    RETURNING l.partition
)
SELECT partition FROM held EXCEPT SELECT partition FROM noted
