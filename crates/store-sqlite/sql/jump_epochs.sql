-- The epochs of all partitions jump by ?1, so that no id is given a second time.
UPDATE partition_lease SET epoch = epoch + ?1, renewals = renewals + 1
