-- Under the lock of raise_pauses.sql. When something was resumed is forgotten after so many days.
WITH removed AS (
    DELETE FROM attune.pause WHERE scope = $1::text AND target = $2::text
),
forgotten AS (
    DELETE FROM attune.pause_resumed
    WHERE at < now() - $3::integer * interval '1 day' AND NOT (scope = $1::text AND target = $2::text)
)
INSERT INTO attune.pause_resumed (scope, target, at)
VALUES ($1::text, $2::text, clock_timestamp())
ON CONFLICT (scope, target) DO UPDATE SET at = excluded.at
