UPDATE api_key SET revoked = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), revoked_by = ?2
WHERE key_id = ?1 AND revoked IS NULL
