-- Removes the executions that end_into_history.sql has copied: ?1 holds their ids.
DELETE FROM execution_active WHERE id IN (SELECT value FROM json_each(?1))
