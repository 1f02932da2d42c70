-- That workers lack the key with which executions of a queue are sealed, as JSON; nothing where they do not.
ALTER TABLE queue_stats ADD COLUMN lacks_key TEXT;
