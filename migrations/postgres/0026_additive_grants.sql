-- A grant names its worker: `execution_active.worker` is written with it, and not by whoever takes it first.
-- What was granted before has none until its owner grants it anew.
--
-- A worker that takes nothing more says so, so that nothing more is granted to it.
ALTER TABLE attune.worker_lease ADD COLUMN draining boolean NOT NULL DEFAULT false;

-- With its worker the second version of a row is longer than it was, and the third has to find room beside
-- it on the same page. Rows that come from now on are laid out so; nothing is rewritten, and nobody waits.
ALTER TABLE attune.execution_active SET (fillfactor = 36);
