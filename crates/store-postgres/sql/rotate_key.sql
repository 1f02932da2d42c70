-- Under lock_keys.sql: the key $2 in the place of $1, which stays good for $4 microseconds at most. No row:
-- the old one is not there, or is not good any more.
WITH old AS (
    UPDATE attune.api_key SET expires = least(expires, now() + $4::bigint * interval '1 microsecond')
    WHERE key_id = $1::text AND revoked IS NULL AND (expires IS NULL OR expires > now())
    RETURNING name, roles, actions, pools, impersonate, rate, max_waiting
)
INSERT INTO attune.api_key
    (key_id, name, hash, roles, actions, pools, impersonate, rate, max_waiting, created_by, expires)
SELECT $2::text, name, $3::bytea, roles, actions, pools, impersonate, rate, max_waiting, $6::text,
       now() + $5::bigint * interval '1 microsecond'
FROM old
