-- What the server is, how it keeps what it has confirmed, and how many connections it has and takes.
SELECT current_setting('server_version_num')::int, current_setting('server_version'),
       current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
       current_setting('max_connections')::int, current_setting('superuser_reserved_connections')::int,
       (SELECT coalesce(sum(numbackends), 0)::bigint FROM pg_stat_database), pg_is_in_recovery()
