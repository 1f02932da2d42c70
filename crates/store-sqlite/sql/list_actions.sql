-- Up to ?2 actions by ref, after ?1 (empty for the first page).
SELECT id, partition, version, spec FROM action WHERE ref > ?1 ORDER BY ref LIMIT ?2
