-- Follows commit.sql in the same transaction, where every fence held and the rows are locked: what else is
-- written of those that wait again, or keep their slots until they are tried again, by no worker until
-- then. A statement of its own, because rounds that put nobody back are many, and because texts have
-- no fixed width.
UPDATE attune.execution_active e SET
    not_before = p.not_before,
    unbegun = p.unbegun,
    last_error = coalesce(p.last_error, e.last_error),
    kept_until = CASE WHEN p.keeps_slot THEN p.not_before END,
    status = CASE WHEN p.keeps_slot THEN 'requested' ELSE e.status END,
    worker = CASE WHEN p.keeps_slot THEN NULL ELSE e.worker END,
    started_at = CASE WHEN p.keeps_slot THEN NULL ELSE e.started_at END
FROM (
    SELECT
        unnest($1::bigint[]) AS id, unnest($2::integer[]) AS attempt,
        unnest($3::timestamptz[]) AS not_before, unnest($4::integer[]) AS unbegun,
        unnest($5::text[]) AS last_error, unnest($6::boolean[]) AS keeps_slot
) AS p
WHERE e.id = ANY($1::bigint[]) AND e.id = p.id AND e.attempt <= p.attempt
