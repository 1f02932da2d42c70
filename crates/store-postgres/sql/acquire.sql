-- Takes what nobody owns, or the asker itself in an earlier epoch; no clock is asked. What was handed
-- over to somebody else is left to that one: who has seen it lie there takes it as it was observed.
-- The rows are locked FOR UPDATE, which nobody gets while a fence holds one of them, that is while a
-- commit of their owner is under way. What is locked is left alone, to be asked for again: one row
-- that somebody holds must not keep the others from having an owner.
WITH free AS (
    SELECT partition FROM attune.partition_lease
    WHERE partition = ANY($1::integer[])
      AND (owner IS NULL OR owner = $2::uuid)
      AND (wanted_owner IS NULL OR wanted_owner = $2::uuid)
    ORDER BY partition
    FOR UPDATE SKIP LOCKED
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
