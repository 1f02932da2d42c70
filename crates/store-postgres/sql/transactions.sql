-- How many transactions a database has seen since it was made; of sessions that are open perhaps not the
-- last ones.
SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = $1::text
