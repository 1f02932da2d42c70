-- The next version of what is said about a target: what, by whom, with which version of the set, why, and
-- whether it is taken back with it.
INSERT INTO attune.policy (scope, target, version, spec, changed_by, set_version, reason, removed)
SELECT $1::text, $2::text, coalesce(max(version), 0) + 1, $3::text::jsonb, $4::text, $5::bigint,
       $6::text, $7::boolean
FROM attune.policy WHERE scope = $1::text AND target = $2::text
RETURNING version, changed_at
