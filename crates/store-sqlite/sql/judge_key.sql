-- How many keys there are, and whether the id ?1 or the name ?2 is taken.
SELECT count(*) AS many, coalesce(max(key_id = ?1), 0) AS id_taken,
       coalesce(max(name = ?2 AND revoked IS NULL AND
                    (expires IS NULL OR expires > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))), 0) AS name_taken
FROM api_key
