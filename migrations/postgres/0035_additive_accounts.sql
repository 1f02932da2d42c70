-- As whom the life of a worker speaks on the broker, and which role of the database has registered it. What others
-- say in its name counts for nothing.
ALTER TABLE attune.worker_lease ADD COLUMN broker_user text;
ALTER TABLE attune.worker_lease ADD COLUMN account text NOT NULL DEFAULT session_user;
