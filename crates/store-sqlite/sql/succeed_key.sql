-- The key ?2 for what ?1 is for, which is good still and has no good key in its place. ?4: how long it is good, as a
-- modifier of times; without it as long as the one before was made for.
INSERT INTO api_key
    (key_id, name, hash, roles, actions, pools, impersonate, rate, max_waiting, created_by, created, expires)
SELECT ?2, k.name, ?3, k.roles, k.actions, k.pools, k.impersonate, k.rate, k.max_waiting, ?5,
       strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
       strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', coalesce(?4,
           '+' || (unixepoch(k.expires, 'subsec') - unixepoch(k.created, 'subsec')) || ' seconds'))
FROM api_key AS k
WHERE k.key_id = ?1 AND k.revoked IS NULL
  AND (k.expires IS NULL OR k.expires > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
  AND NOT EXISTS (SELECT 1 FROM api_key AS o
                  WHERE o.name = k.name AND o.rowid > k.rowid AND o.revoked IS NULL
                    AND (o.expires IS NULL OR o.expires > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')))
