-- Of somebody else it is not renewed either. As whom it speaks on the broker is what it has said first.
-- A lease that was ended is left as it is, and no row is returned. One that has run out by the
-- database's clock and that nobody has ended is renewed: that clock may have stepped.
INSERT INTO attune.worker_lease AS w (worker, name, pool, slots, expires_at, renewed_at, draining, broker_user,
                                    principal)
SELECT $1::uuid, $2::text, $3::text, $4::integer, t.now + $5::bigint * interval '1 microsecond', t.now,
       $6::boolean, $7::text, $8::text
FROM (SELECT clock_timestamp() AS now) AS t
ON CONFLICT (worker) DO UPDATE SET
    name = excluded.name, pool = excluded.pool, slots = excluded.slots,
    expires_at = excluded.expires_at, renewed_at = excluded.renewed_at, renewals = w.renewals + 1,
    draining = excluded.draining, broker_user = coalesce(w.broker_user, excluded.broker_user)
WHERE NOT w.ended AND w.principal IS NOT DISTINCT FROM excluded.principal
RETURNING 1
