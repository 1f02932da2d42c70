-- The set, with its version; nothing when that is not above ?1. The newest version of each document is in
-- force, unless it took the document back. Those of actions stand in the actions.
SELECT of_set.version AS of_set, p.scope, p.target, p.version, p.set_version, p.spec, p.changed_by,
       p.changed_at, p.reason, p.removed
  FROM policy_set AS of_set
  LEFT JOIN policy AS p
    ON p.scope IN ('global', 'pack', 'user')
   AND p.removed = 0
   AND p.version = (SELECT max(n.version) FROM policy AS n
                     WHERE n.scope = p.scope AND n.target = p.target)
 WHERE of_set.version > ?1
 ORDER BY p.scope, p.target
