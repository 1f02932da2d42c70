-- A grant names its worker: `execution_active.worker` is written with it, and not by whoever takes it first.
-- What was granted before has none until its owner grants it anew.
--
-- A worker that takes nothing more says so, so that nothing more is granted to it.
ALTER TABLE worker_lease ADD COLUMN draining INTEGER NOT NULL DEFAULT 0 CHECK (draining IN (0, 1));
