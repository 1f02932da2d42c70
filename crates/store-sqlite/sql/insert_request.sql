-- The requests of executions that were accepted at ?2. The first execution of a request keeps it.
INSERT INTO request (request_id, execution_id, digest, created)
SELECT r.request_id, r.execution_id, r.digest, ?2
  FROM (SELECT value ->> '$[0]' AS request_id, value ->> '$[1]' AS execution_id,
               value ->> '$[2]' AS digest
          FROM jsonb_each(?1)) AS r
 WHERE true
    ON CONFLICT (request_id) DO NOTHING
