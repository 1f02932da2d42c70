-- How many bytes the server has written ahead since it was made, those that are still in memory
-- included. Takes no lock; fails on a server that only follows another.
SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint
