-- The bodies of the grants in ?1 that had been written before.
SELECT a.id, a.parameters, a.timeout_seconds, a.traceparent
  FROM jsonb_each(?1) AS g
 CROSS JOIN execution_active AS a ON a.id = g.value ->> '$[0]' AND a.attempt = g.value ->> '$[1]'
 WHERE a.status <> 'queued'
