SELECT id, partition, version, spec::text FROM attune.action
WHERE partition = ANY($1::integer[]) ORDER BY id
