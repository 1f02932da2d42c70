-- As whom the life of a worker speaks on the broker. What others say in its name counts for nothing.
ALTER TABLE worker_lease ADD COLUMN broker_user TEXT;
