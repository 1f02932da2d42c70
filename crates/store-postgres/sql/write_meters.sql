-- Part of a round, after its fences were checked and in its transaction, so only the owner of a partition
-- gets here and nobody waits for anybody. The whole state of each, so that writing it twice is the same as
-- once. The rows stay on their pages: half of each is free for that, and no other index names them.
INSERT INTO attune.meter (partition, limit_id, key, state, expires_at, written_at)
SELECT m.partition, m.limit_id, m.key, m.state, m.expires_at, clock_timestamp()
FROM (
    SELECT
        unnest($1::integer[]) AS partition, unnest($2::text[]) AS limit_id,
        unnest($3::bytea[]) AS key, unnest($4::bytea[]) AS state,
        unnest($5::timestamptz[]) AS expires_at
) AS m
ON CONFLICT (partition, limit_id, key) DO UPDATE
SET state = excluded.state, expires_at = excluded.expires_at, written_at = excluded.written_at
