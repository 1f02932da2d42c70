-- What the migrations have done to this file.
SELECT version, description, checksum FROM _sqlx_migrations ORDER BY version
