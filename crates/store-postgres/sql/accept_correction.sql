UPDATE attune.schema_migration SET checksum = $1::bytea
WHERE version = $2::bigint AND checksum = decode($3::text, 'hex') AND success
