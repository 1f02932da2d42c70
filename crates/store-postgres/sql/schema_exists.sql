SELECT to_regclass('attune.schema_migration') IS NOT NULL
