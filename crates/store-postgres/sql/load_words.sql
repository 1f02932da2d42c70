-- What executions say by which they can be grouped, in the order of their ids; of what has more than $2
-- bytes together only the first.
SELECT id, requested_by, group_key, labels, parameters
FROM (
    SELECT id, requested_by, group_key, labels::text AS labels, parameters::text AS parameters,
           sum(octet_length(parameters::text)) OVER (ORDER BY id) AS bytes,
           row_number() OVER (ORDER BY id) AS number
    FROM attune.execution_active WHERE id = ANY($1::bigint[])
) AS words
WHERE bytes <= $2::bigint OR number = 1
ORDER BY id
