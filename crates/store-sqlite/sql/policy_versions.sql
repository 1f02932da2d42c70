-- Versions of what is said about the target ?2 of the scope ?1, below ?3, the newest first.
SELECT version, set_version, spec, changed_by, changed_at, reason, removed
  FROM policy
 WHERE scope = ?1 AND target = ?2 AND version < ?3
 ORDER BY version DESC
 LIMIT ?4
