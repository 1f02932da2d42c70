-- Renews one row and lists all that are alive. The second part sees the row as it was before
-- the first, so it leaves it out.
WITH mine AS (
    INSERT INTO attune.executor_lease AS x (executor, name, expires_at, cut_off)
    VALUES ($1::uuid, $2::text, clock_timestamp() + $3::bigint * interval '1 microsecond',
            $4::boolean)
    ON CONFLICT (executor) DO UPDATE SET
        name = excluded.name, expires_at = excluded.expires_at, cut_off = excluded.cut_off,
        renewals = x.renewals + 1
    RETURNING executor, name, expires_at, renewals, cut_off
)
SELECT executor, name, expires_at, clock_timestamp() AS now, renewals, cut_off FROM mine
UNION ALL
SELECT executor, name, expires_at, clock_timestamp(), renewals, cut_off FROM attune.executor_lease
WHERE executor <> $1::uuid AND expires_at > clock_timestamp()
