SELECT version, success, checksum FROM attune.schema_migration ORDER BY version
