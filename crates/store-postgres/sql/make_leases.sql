INSERT INTO attune.partition_lease (partition)
SELECT n FROM generate_series(0, $1::integer - 1) AS n
ON CONFLICT (partition) DO NOTHING
