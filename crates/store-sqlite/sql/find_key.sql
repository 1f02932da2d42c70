SELECT key_id, name, hash, roles, actions, pools, impersonate, rate, max_waiting, created, created_by, expires,
       revoked, revoked_by, last_used, last_ip, (julianday(expires) - julianday('now')) * 86400.0 AS left_seconds
FROM api_key WHERE key_id = ?1
