-- As find_key.sql.
SELECT key_id, name, hash, roles, actions, pools, impersonate, rate::text, max_waiting, created, created_by,
       expires, revoked, revoked_by, last_used, last_ip,
       CASE WHEN expires IS NOT NULL THEN (extract(epoch FROM least(expires, now() + interval '1 day') - now()) * 1000000)::bigint END AS left_micros
FROM attune.api_key WHERE expires IS DISTINCT FROM '-infinity'
ORDER BY name, created, key_id LIMIT $1::bigint
