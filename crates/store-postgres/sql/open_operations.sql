-- What is open in these partitions, along the index of what is open.
SELECT p.operation, p.partition::bigint AS partition, p.upto, p.cursor, p.matched, p.done, p.skipped,
       o.kind, o.filter::text AS filter, o.args::text AS args
FROM attune.operation_progress p JOIN attune.operation o ON o.id = p.operation
WHERE p.partition = ANY($1::integer[]) AND p.state <> 'done'
ORDER BY p.partition, p.operation
