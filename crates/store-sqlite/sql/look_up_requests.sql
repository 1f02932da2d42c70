-- Those of the requests ?1 that are known, and where their executions stand. A request whose
-- execution is gone is as good as forgotten.
SELECT r.request_id, r.execution_id, r.digest, coalesce(a.status, h.status) AS status
  FROM request AS r
  LEFT JOIN execution_active AS a ON a.id = r.execution_id
  LEFT JOIN execution_history AS h ON h.id = r.execution_id
 WHERE r.request_id IN (SELECT value FROM json_each(?1))
   AND coalesce(a.status, h.status) IS NOT NULL
