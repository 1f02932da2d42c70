-- The key ?1 stays good for ?2 at most, a modifier of times.
UPDATE api_key SET expires = min(coalesce(expires, '9999'), strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', ?2))
WHERE key_id = ?1
