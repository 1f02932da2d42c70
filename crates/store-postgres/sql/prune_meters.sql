-- What says nothing any more for longer than $1 microseconds. In small steps; called until nothing is left.
-- Whoever comes back is counted in such an old row again: what a round writes right now is left alone,
-- so that this waits for no round, and no round for more than one step.
DELETE FROM attune.meter WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM attune.meter
    WHERE expires_at < now() - $1::bigint * interval '1 microsecond'
    LIMIT $2::bigint
    FOR UPDATE SKIP LOCKED))
