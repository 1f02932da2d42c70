-- An executor that cannot reach the message broker says so, and nobody leaves partitions to it.
ALTER TABLE attune.executor_lease ADD COLUMN cut_off boolean NOT NULL DEFAULT false;
