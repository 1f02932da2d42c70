-- How the tables are that every execution changes: live and dead rows, changes, and those that touched no index.
SELECT relname::text, n_live_tup, n_dead_tup, n_tup_upd, n_tup_hot_upd
FROM pg_stat_user_tables
WHERE schemaname = 'attune'
  AND relname IN ('execution_active', 'queue_stats', 'partition_lease', 'worker_lease')
ORDER BY relname
