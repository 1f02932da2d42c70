-- What is said about a target, as it is in force; nothing when that was taken back.
SELECT CASE WHEN removed THEN NULL ELSE spec::text END
FROM attune.policy
WHERE scope = $1::text AND target = $2::text
ORDER BY version DESC
LIMIT 1
