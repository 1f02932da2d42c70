-- What says nothing any more for longer than $1 microseconds. In small steps; called until nothing is left.
-- `expires_at` is by the limit that was in force when the row was written: where the action has a longer one
-- now, the row says something for as long as that, and a little longer, as large limits count by slices.
-- Whoever comes back is counted in such an old row again: what a round writes right now is left alone,
-- so that this waits for no round, and no round for more than one step.
DELETE FROM attune.meter WHERE ctid = ANY(ARRAY(
    SELECT m.ctid
    FROM attune.meter m
    LEFT JOIN attune.action a
           ON a.ref = split_part(m.limit_id, '/', 2) AND split_part(m.limit_id, '/', 1) = 'action'
    WHERE m.expires_at < now() - $1::bigint * interval '1 microsecond'
      AND coalesce(
          m.written_at + CASE split_part(m.limit_id, '/', 3)
              WHEN 'rate_limit' THEN
                  (a.spec #>> '{policy,rate_limit,window_seconds}')::bigint * interval '1 second'
              WHEN 'min_interval_ms' THEN
                  (a.spec #>> '{policy,min_interval_ms}')::bigint * interval '1 millisecond'
          END * 65 / 64 < now() - $1::bigint * interval '1 microsecond', true)
    LIMIT $2::bigint
    FOR UPDATE OF m SKIP LOCKED))
