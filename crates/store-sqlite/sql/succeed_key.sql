-- The key ?2 for what ?1 is for, which is good still. ?4: how long it is good, as a modifier of times.
INSERT INTO api_key
    (key_id, name, hash, roles, actions, pools, impersonate, rate, max_waiting, created_by, created, expires)
SELECT ?2, name, ?3, roles, actions, pools, impersonate, rate, max_waiting, ?5,
       strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', ?4)
FROM api_key
WHERE key_id = ?1 AND revoked IS NULL
  AND (expires IS NULL OR expires > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
