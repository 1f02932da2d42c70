-- Under the lock of raise_pauses.sql. It was held since then if the mode stays the same.
WITH resumed AS (
    DELETE FROM attune.pause_resumed WHERE scope = $1::text AND target = $2::text
)
INSERT INTO attune.pause AS held (scope, target, mode, who, reason)
VALUES ($1::text, $2::text, $3::text, $4::text, $5::text)
ON CONFLICT (scope, target) DO UPDATE SET
    since = CASE WHEN held.mode = excluded.mode THEN held.since ELSE excluded.since END,
    mode = excluded.mode, who = excluded.who, reason = excluded.reason
RETURNING since
