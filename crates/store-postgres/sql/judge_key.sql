-- Under lock_keys.sql: how many keys there are, and whether the id $1 or the name $2 is taken.
SELECT count(*), coalesce(bool_or(key_id = $1::text), false),
       coalesce(bool_or(name = $2::text AND revoked IS NULL AND (expires IS NULL OR expires > now())), false)
FROM attune.api_key
