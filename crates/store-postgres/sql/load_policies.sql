-- One statement, so that the version and the set are of one moment; nothing when it is not newer. The newest
-- version of each document is in force, unless it took the document back. Those of actions stand in
-- the actions.
SELECT of_set.version, p.scope, p.target, p.version, p.set_version, p.spec::text, p.changed_by,
       p.changed_at, p.reason
FROM attune.policy_set AS of_set
LEFT JOIN LATERAL (
    SELECT DISTINCT ON (scope, target) *
    FROM attune.policy
    WHERE scope IN ('global', 'pack', 'user')
    ORDER BY scope, target, version DESC
) AS p ON NOT p.removed
WHERE of_set.version > $1::bigint
ORDER BY p.scope, p.target
