UPDATE attune.api_key SET revoked = now(), revoked_by = $2::text
WHERE key_id = $1::text AND revoked IS NULL
