-- A lease that has expired is left as it is, and no row is returned.
INSERT INTO attune.worker_lease AS w (worker, name, pool, slots, expires_at, renewed_at)
VALUES ($1::uuid, $2::text, $3::text, $4::integer,
        clock_timestamp() + $5::bigint * interval '1 microsecond', clock_timestamp())
ON CONFLICT (worker) DO UPDATE SET
    name = excluded.name, pool = excluded.pool, slots = excluded.slots,
    expires_at = excluded.expires_at, renewed_at = excluded.renewed_at
WHERE w.expires_at > clock_timestamp()
RETURNING 1
