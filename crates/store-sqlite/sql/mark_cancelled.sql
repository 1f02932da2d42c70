-- Notes that executions shall be ended, or no longer, and nothing else.
UPDATE execution_active AS a
   SET cancel_requested = c.cancel_requested
  FROM (SELECT value ->> '$[0]' AS id, value ->> '$[1]' AS attempt,
               value ->> '$[3]' AS cancel_requested
          FROM jsonb_each(?1)) AS c
 WHERE a.id = c.id AND a.attempt <= c.attempt
