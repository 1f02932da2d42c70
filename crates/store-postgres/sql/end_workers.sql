-- Ends the leases that have not moved since they were observed, and says which of those asked for
-- are over: ended now, ended before, or without a row. A renewal that comes first moves the lease,
-- and the row that was locked for it is compared again. A row that somebody else has locked is left
-- for the next time: it holds up no other worker's end.
WITH asked AS (
    SELECT unnest($1::uuid[]) AS worker, unnest($2::bigint[]) AS renewals
),
unmoved AS (
    SELECT w.worker FROM asked a
    JOIN attune.worker_lease w ON w.worker = a.worker AND w.renewals = a.renewals
    WHERE NOT w.ended
    ORDER BY w.worker
    FOR NO KEY UPDATE OF w SKIP LOCKED
),
ended AS (
    UPDATE attune.worker_lease w SET
        ended = true, expires_at = least(w.expires_at, clock_timestamp())
    FROM unmoved u WHERE w.worker = u.worker
    RETURNING w.worker
)
SELECT a.worker FROM asked a
LEFT JOIN attune.worker_lease w ON w.worker = a.worker
LEFT JOIN ended e ON e.worker = a.worker
WHERE w.worker IS NULL OR w.ended OR e.worker IS NOT NULL
