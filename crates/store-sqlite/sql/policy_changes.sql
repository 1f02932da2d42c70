-- The versions of the policy of the action ?1, the newest first.
SELECT version, spec, changed_by, changed_at
  FROM policy
 WHERE scope = 'action' AND target = ?1
 ORDER BY version DESC
