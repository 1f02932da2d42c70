-- Where those stand that were moved by hand.
UPDATE execution_active AS a
   SET priority = m.priority, front = m.front
  FROM (SELECT value ->> 'id' AS id, value ->> 'priority' AS priority, value ->> 'front' AS front
          FROM jsonb_each(?1)) AS m
 WHERE a.id = m.id
