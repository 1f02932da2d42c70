-- Fixes the number of partitions, the first time.
INSERT INTO cluster (only_row, partitions) VALUES (1, ?1) ON CONFLICT DO NOTHING
