-- Ends those leases in ?1 that have not moved since they were observed.
UPDATE worker_lease AS w
   SET ended = 1, expires_at = min(w.expires_at, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
  FROM (SELECT value ->> 'worker' AS worker, value ->> 'renewals' AS renewals
          FROM jsonb_each(?1)) AS o
 WHERE w.worker = o.worker AND w.renewals = o.renewals AND NOT w.ended
