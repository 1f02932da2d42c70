-- The requests of accepted executions. The first execution of a request keeps it.
INSERT INTO request (request_id, execution_id, digest, created)
SELECT r.value ->> 'request_id', r.value ->> 'execution_id', r.value ->> 'digest',
       strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
  FROM jsonb_each(?1) AS r
 WHERE true
    ON CONFLICT (request_id) DO NOTHING
