-- A lease row for each of ?1 partitions.
INSERT INTO partition_lease (partition, updated_at)
WITH RECURSIVE numbers (n) AS (
    SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < ?1
)
SELECT n, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') FROM numbers
 WHERE true
    ON CONFLICT (partition) DO NOTHING
