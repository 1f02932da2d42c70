-- Takes what has not moved since it was observed; the caller has waited long enough by its own
-- clock. The rows are locked as in acquire.sql: of two who race, and of a take-over that races a
-- renewal, one finds that the row has moved or is locked.
WITH unmoved AS (
    SELECT l.partition
    FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) AS o (partition, epoch, renewals)
    JOIN attune.partition_lease l
        ON l.partition = o.partition AND l.epoch = o.epoch AND l.renewals = o.renewals
    ORDER BY l.partition
    FOR UPDATE OF l SKIP LOCKED
)
UPDATE attune.partition_lease l SET
    owner = $4::uuid,
    owner_name = $5::text,
    wanted_owner = NULL,
    epoch = l.epoch + 1,
    renewals = l.renewals + 1,
    expires_at = t.now + $6::bigint * interval '1 microsecond',
    updated_at = t.now
FROM unmoved, (SELECT clock_timestamp() AS now) AS t
WHERE l.partition = unmoved.partition
RETURNING l.partition, l.epoch
