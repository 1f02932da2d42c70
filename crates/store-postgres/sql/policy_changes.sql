SELECT p.version, p.spec::text, p.changed_by, p.changed_at
FROM attune.action a JOIN attune.policy p ON p.scope = 'action' AND p.target = a.ref
WHERE a.id = $1::bigint ORDER BY p.version DESC
