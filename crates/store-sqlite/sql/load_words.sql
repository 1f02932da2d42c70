-- What the executions say whose ids are in ?1 and by which they can be grouped, in the order of their
-- ids; of what has more than ?2 characters together only the first.
SELECT id, requested_by, group_key, labels, parameters
  FROM (SELECT id, requested_by, group_key, labels, parameters,
               sum(length(parameters)) OVER (ORDER BY id) AS characters,
               row_number() OVER (ORDER BY id) AS number
          FROM execution_active
         WHERE id IN (SELECT value FROM json_each(?1)))
 WHERE characters <= ?2 OR number = 1
 ORDER BY id
