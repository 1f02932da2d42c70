-- Under the lock of raise_pauses.sql. It was resumed after it was paused, whatever the clock shows. Of what was resumed
-- the newest $3 are known, counted and not by their age: a clock that is ahead once would forget all the others.
WITH removed AS (
    DELETE FROM attune.pause WHERE scope = $1::text AND target = $2::text RETURNING since
),
forgotten AS (
    DELETE FROM attune.pause_resumed WHERE (scope, target) IN (
        SELECT scope, target FROM attune.pause_resumed
        WHERE NOT (scope = $1::text AND target = $2::text)
        ORDER BY at DESC OFFSET $3::bigint - 1
    )
)
INSERT INTO attune.pause_resumed (scope, target, at)
VALUES ($1::text, $2::text, greatest(clock_timestamp(), (SELECT since FROM removed)))
ON CONFLICT (scope, target) DO UPDATE SET at = excluded.at
