SELECT version, description, success, checksum FROM attune.schema_migration ORDER BY version
