-- Leases are judged by observation: who watches one sees whether `renewals` has moved, by a clock
-- of its own that only goes forward. The database's clock may step.
ALTER TABLE attune.partition_lease ADD COLUMN renewals bigint NOT NULL DEFAULT 0;
ALTER TABLE attune.executor_lease ADD COLUMN renewals bigint NOT NULL DEFAULT 0;
-- A lease that somebody has ended, because it did not move or its worker had nothing left to do.
ALTER TABLE attune.worker_lease
    ADD COLUMN renewals bigint NOT NULL DEFAULT 0,
    ADD COLUMN ended boolean NOT NULL DEFAULT false;
