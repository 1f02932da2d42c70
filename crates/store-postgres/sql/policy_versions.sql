SELECT version, set_version, spec::text, changed_by, changed_at, reason, removed
FROM attune.policy
WHERE scope = $1::text AND target = $2::text AND version < $3::bigint
ORDER BY version DESC
LIMIT $4::bigint
