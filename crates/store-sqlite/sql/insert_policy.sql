-- The next version of the policy of the action ?1: its spec ?2, and who changed it, ?3.
INSERT INTO policy (scope, target, version, spec, changed_by, changed_at)
SELECT 'action', ?1, coalesce(max(version), 0) + 1, ?2, ?3,
       strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
  FROM policy
 WHERE scope = 'action' AND target = ?1
