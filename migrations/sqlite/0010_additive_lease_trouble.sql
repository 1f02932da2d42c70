-- What keeps the owner of a partition from its work, for the health of its queues. It holds for the
-- epoch in which it was written: a change of hands makes it void.
ALTER TABLE partition_lease ADD COLUMN trouble TEXT;
ALTER TABLE partition_lease ADD COLUMN trouble_since TEXT;
ALTER TABLE partition_lease ADD COLUMN trouble_epoch INTEGER;
