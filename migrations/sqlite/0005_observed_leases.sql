-- Leases are judged by observation: who watches one sees whether `renewals` has moved, by a clock
-- of its own that only goes forward. The machine's clock may step.
ALTER TABLE partition_lease ADD COLUMN renewals INTEGER NOT NULL DEFAULT 0;
ALTER TABLE executor_lease ADD COLUMN renewals INTEGER NOT NULL DEFAULT 0;
-- A lease that somebody has ended, because it did not move or its worker had nothing left to do.
ALTER TABLE worker_lease ADD COLUMN renewals INTEGER NOT NULL DEFAULT 0;
ALTER TABLE worker_lease ADD COLUMN ended INTEGER NOT NULL DEFAULT 0 CHECK (ended IN (0, 1));
