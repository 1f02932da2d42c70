-- What this program relies on; asked in the session of a commit's own user and database.
SELECT current_setting('synchronous_commit'), current_setting('fsync'),
       current_setting('server_encoding')
