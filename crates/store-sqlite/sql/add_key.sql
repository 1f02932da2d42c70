-- ?11: how long it is good, as a modifier of times.
INSERT INTO api_key
    (key_id, name, hash, roles, actions, pools, impersonate, rate, max_waiting, created_by, created, expires)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
        strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', ?11))
