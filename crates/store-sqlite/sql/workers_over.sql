-- Those workers in ?1 whose lease was ended, or whose row is gone.
SELECT o.value ->> 'worker' AS worker
  FROM jsonb_each(?1) AS o
  LEFT JOIN worker_lease AS w ON w.worker = o.value ->> 'worker'
 WHERE w.worker IS NULL OR w.ended
