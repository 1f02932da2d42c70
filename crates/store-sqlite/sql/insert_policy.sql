-- The next version of what is said about the target ?2 of the scope ?1: what, ?3, by whom, ?4, with which
-- version of the set, ?5, why, ?6, and whether it is taken back with it, ?7.
INSERT INTO policy (scope, target, version, spec, changed_by, changed_at, set_version, reason, removed)
SELECT ?1, ?2, coalesce(max(version), 0) + 1, ?3, ?4, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
       ?5, ?6, ?7
  FROM policy
 WHERE scope = ?1 AND target = ?2
RETURNING version, changed_at
