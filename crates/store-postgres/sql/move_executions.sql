-- Follows commit.sql in the same transaction, where every fence held: where those stand that were moved by
-- hand. No index covers what changes.
UPDATE attune.execution_active e SET priority = m.priority, front = m.front
FROM (
    SELECT unnest($1::bigint[]) AS id, unnest($2::smallint[]) AS priority, unnest($3::boolean[]) AS front
) AS m
WHERE e.id = ANY($1::bigint[]) AND e.id = m.id
