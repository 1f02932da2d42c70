-- Returns the new id; nothing when somebody else was faster.
INSERT INTO attune.action (ref, pack, partition, version, spec)
SELECT $1::text, p.id, $3::integer, 1, $4::text::jsonb FROM attune.pack p WHERE p.ref = $2::text
ON CONFLICT (ref) DO NOTHING
RETURNING id
