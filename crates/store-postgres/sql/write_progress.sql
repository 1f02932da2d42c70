-- Follows commit.sql in the same transaction, where every fence held: how far operations are, as it is then
-- and not by how much it changed, so that a batch that is written twice counts once.
UPDATE attune.operation_progress p SET
    upto = w.upto, cursor = w.cursor, matched = w.matched, done = w.done, skipped = w.skipped,
    state = w.state
FROM (
    SELECT unnest($1::bigint[]) AS operation, unnest($2::integer[]) AS partition,
           unnest($3::bigint[]) AS upto, unnest($4::bigint[]) AS cursor,
           unnest($5::bigint[]) AS matched, unnest($6::bigint[]) AS done,
           unnest($7::bigint[]) AS skipped, unnest($8::text[]) AS state
) AS w
WHERE p.operation = w.operation AND p.partition = w.partition
