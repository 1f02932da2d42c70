-- An executor that cannot reach the message broker says so, and nobody leaves partitions to it.
ALTER TABLE executor_lease ADD COLUMN cut_off INTEGER NOT NULL DEFAULT 0;
