-- Nothing where the same was asked for before, or ?7 are open.
INSERT INTO operation (request_id, kind, filter, args, who, reason, created)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
 WHERE (SELECT count(DISTINCT operation) FROM operation_progress WHERE state <> 'done') < ?7
    ON CONFLICT (request_id) DO NOTHING
RETURNING id
