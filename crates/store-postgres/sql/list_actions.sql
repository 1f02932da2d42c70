SELECT id, partition, version, spec::text FROM attune.action
WHERE ref > $1::text ORDER BY ref LIMIT $2::bigint
