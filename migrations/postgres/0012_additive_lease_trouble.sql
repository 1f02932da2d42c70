-- What keeps the owner of a partition from its work, for the health of its queues. It holds for the
-- epoch in which it was written: a change of hands makes it void, whichever release takes over.
ALTER TABLE attune.partition_lease
    ADD COLUMN trouble text,
    ADD COLUMN trouble_since timestamptz,
    ADD COLUMN trouble_epoch bigint;

-- Where a disk is full, leases can be renewed as long as their pages have room, also for those words.
ALTER TABLE attune.partition_lease SET (fillfactor = 10);
CLUSTER attune.partition_lease USING partition_lease_pkey;
