-- Starts or extends the lease of the worker ?1 by ?5 seconds. A lease that was
-- ended stays as it is: the slots of its worker may have been given to others. One that has run out
-- by the clock and that nobody has ended is renewed: the clock may have stepped.
INSERT INTO worker_lease (worker, name, pool, slots, expires_at, started_at, renewed_at, draining,
                          broker_user, principal)
VALUES (?1, ?2, ?3, ?4, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', ?5 || ' seconds'),
        strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
        ?6, ?7, ?8)
    ON CONFLICT (worker) DO UPDATE
   SET name = excluded.name, pool = excluded.pool, slots = excluded.slots,
       expires_at = excluded.expires_at, renewed_at = excluded.renewed_at,
       renewals = worker_lease.renewals + 1, draining = excluded.draining,
       broker_user = coalesce(worker_lease.broker_user, excluded.broker_user)
 WHERE NOT worker_lease.ended AND worker_lease.principal IS excluded.principal
