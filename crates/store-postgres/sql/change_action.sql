UPDATE attune.action SET spec = $2::text::jsonb, version = version + 1, updated = now()
WHERE id = $1::bigint RETURNING version
