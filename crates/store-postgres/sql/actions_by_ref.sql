SELECT id, partition, version, spec::text FROM attune.action WHERE ref = ANY($1::text[])
