-- Follows add_operation.sql in its transaction.
INSERT INTO operation_progress (operation, partition)
SELECT ?1, value FROM json_each(?2)
