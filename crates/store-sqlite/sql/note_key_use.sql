UPDATE api_key SET last_used = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), last_ip = ?2 WHERE key_id = ?1
