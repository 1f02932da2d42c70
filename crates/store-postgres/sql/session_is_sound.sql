-- Outside of a transaction, now() is the start of this very statement.
SELECT now() = statement_timestamp()
