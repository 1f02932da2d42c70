-- The set, with its version; nothing when that is not above ?1.
SELECT of_set.version, held.scope, held.target, held.mode, held.at, held.who, held.reason
  FROM pause_set AS of_set
  LEFT JOIN (
       SELECT scope, target, mode, since AS at, who, reason FROM pause
        UNION ALL
       SELECT scope, target, NULL, at, NULL, NULL FROM pause_resumed
       ) AS held ON true
 WHERE of_set.version > ?1
 ORDER BY held.scope, held.target
