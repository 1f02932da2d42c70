-- Follows add_operation.sql in its transaction.
INSERT INTO attune.operation_progress (operation, partition)
SELECT $1::bigint, unnest($2::integer[])
