-- Nothing where the same was asked for before.
INSERT INTO attune.operation (request_id, kind, filter, args, who, reason)
VALUES ($1::uuid, $2::text, $3::text::json, $4::text::json, $5::text, $6::text)
ON CONFLICT (request_id) DO NOTHING
RETURNING id
