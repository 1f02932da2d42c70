-- Whoever changes an action holds its row, so that versions of its policy follow each other.
SELECT id, partition, version, spec::text FROM attune.action WHERE ref = $1::text FOR UPDATE
