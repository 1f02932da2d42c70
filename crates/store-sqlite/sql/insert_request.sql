-- The requests of executions that were accepted at ?2. The first execution of a request keeps it.
INSERT INTO request (request_id, execution_id, digest, created)
SELECT r.value ->> 'request_id', r.value ->> 'execution_id', r.value ->> 'digest',
       ?2
  FROM jsonb_each(?1) AS r
 WHERE true
    ON CONFLICT (request_id) DO NOTHING
