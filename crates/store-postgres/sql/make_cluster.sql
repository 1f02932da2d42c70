-- The first caller fixes the number of partitions; a second one waits here for the first.
INSERT INTO attune.cluster (partitions) VALUES ($1) ON CONFLICT (only_row) DO NOTHING
