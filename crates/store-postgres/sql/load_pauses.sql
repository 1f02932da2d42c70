-- One statement, so that the version and the set are of one moment; nothing when it is not newer.
SELECT of_set.version, held.scope, held.target, held.mode, held.at, held.who, held.reason
FROM attune.pause_set AS of_set
LEFT JOIN LATERAL (
    SELECT scope, target, mode, since AS at, who, reason FROM attune.pause
    UNION ALL
    SELECT scope, target, NULL, at, NULL, NULL FROM attune.pause_resumed
) AS held ON true
WHERE of_set.version > $1::bigint
ORDER BY held.scope, held.target
