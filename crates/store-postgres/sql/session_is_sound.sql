-- Outside of a transaction, now() is the start of this very statement, where it comes as a simple query; as a
-- prepared one it is the start of the message before. A session that began while the
-- database took no writes, or on a standby, may never take one.
SELECT now() = statement_timestamp() AND NOT current_setting('transaction_read_only')::boolean
