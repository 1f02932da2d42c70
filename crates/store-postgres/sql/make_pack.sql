INSERT INTO attune.pack (ref) SELECT $1::text
WHERE NOT EXISTS (SELECT FROM attune.pack WHERE ref = $1::text)
ON CONFLICT (ref) DO NOTHING
