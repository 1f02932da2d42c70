-- `left_micros`: how long it is good, of the next day; an `infinity` has no number.
SELECT key_id, name, hash, roles, actions, pools, impersonate, rate::text, max_waiting, created, created_by,
       expires, revoked, revoked_by, last_used, last_ip,
       CASE WHEN expires IS NOT NULL THEN (extract(epoch FROM least(expires, now() + interval '1 day') - now()) * 1000000)::bigint END AS left_micros
FROM attune.api_key WHERE key_id = $1::text AND expires IS DISTINCT FROM '-infinity'
