-- In the order of their ids; of what has more than $2 bytes together only the first.
SELECT id, parameters, timeout_seconds, traceparent
FROM (
    SELECT id, parameters::text AS parameters, timeout_seconds, traceparent,
           sum(octet_length(parameters::text)) OVER (ORDER BY id) AS bytes,
           row_number() OVER (ORDER BY id) AS number
    FROM attune.execution_active WHERE id = ANY($1::bigint[])
) AS body
WHERE bytes <= $2::bigint OR number = 1
ORDER BY id
