-- What there is that the upkeep looks after: how many days to come have a table, rows that no day has
-- taken, dead letters that were not put back. The days are read from the catalog: none is locked.
SELECT
    (SELECT count(*)
     FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
     WHERE i.inhparent = 'attune.execution_history'::regclass
       AND c.relname ~ '^execution_history_\d{8}$'
       AND to_date(right(c.relname, 8), 'YYYYMMDD') > (now() AT TIME ZONE 'UTC')::date) AS days_ahead,
    (SELECT count(*) FROM attune.execution_history_default)
        + (SELECT count(*) FROM attune.request_default) AS of_no_day,
    (SELECT count(*) FROM attune.dead_letter WHERE requeued_at IS NULL) AS letters
