-- What the migrations have done to this file.
SELECT version, checksum FROM _sqlx_migrations ORDER BY version
