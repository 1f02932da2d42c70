-- Whoever changes the epoch of a partition waits for the commits that lock its row FOR KEY SHARE,
-- whichever release it is of, because the epoch is part of a key now. Renewals wait for no commit.
CREATE UNIQUE INDEX partition_lease_epoch ON attune.partition_lease (partition, epoch);
