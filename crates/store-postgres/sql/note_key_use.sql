UPDATE attune.api_key SET last_used = now(), last_ip = $2::text WHERE key_id = $1::text
