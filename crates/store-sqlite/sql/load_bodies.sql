-- What a dispatch needs of the executions whose ids are in ?1, in the order of their ids; of what has
-- more than ?2 characters together only the first.
SELECT id, parameters, timeout_seconds, traceparent
  FROM (SELECT id, parameters, timeout_seconds, traceparent,
               sum(length(parameters)) OVER (ORDER BY id) AS characters,
               row_number() OVER (ORDER BY id) AS number
          FROM execution_active
         WHERE id IN (SELECT value FROM json_each(?1)))
 WHERE characters <= ?2 OR number = 1
 ORDER BY id
