-- Under lock_keys.sql: the key $2 in the place of $1, which stays good for $4 microseconds at most. Without $5 the
-- new one is good as long as the old one was made for. No row: the old one is not there, is not good any more, or has
-- a good key in its place.
WITH old AS (
    SELECT k.key_id, k.name, k.roles, k.actions, k.pools, k.impersonate, k.rate, k.max_waiting,
           coalesce($5::bigint * interval '1 microsecond', k.expires - k.created) AS life
    FROM attune.api_key k
    WHERE k.key_id = $1::text AND k.revoked IS NULL AND (k.expires IS NULL OR k.expires > now())
      AND NOT EXISTS (
          SELECT FROM attune.api_key o
          WHERE o.name = k.name AND o.created > k.created AND o.revoked IS NULL
            AND (o.expires IS NULL OR o.expires > now()))
),
shortened AS (
    UPDATE attune.api_key k SET expires = least(k.expires, now() + $4::bigint * interval '1 microsecond')
    FROM old WHERE k.key_id = old.key_id
)
INSERT INTO attune.api_key
    (key_id, name, hash, roles, actions, pools, impersonate, rate, max_waiting, created_by, expires)
SELECT $2::text, name, $3::bytea, roles, actions, pools, impersonate, rate, max_waiting, $6::text, now() + life
FROM old
