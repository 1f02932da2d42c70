INSERT INTO attune.policy (scope, target, version, spec, changed_by)
SELECT 'action', $1::text, coalesce(max(version), 0) + 1, $2::text::jsonb, $3::text
FROM attune.policy WHERE scope = 'action' AND target = $1::text
