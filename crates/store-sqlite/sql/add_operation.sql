-- Nothing where the same was asked for before.
INSERT INTO operation (request_id, kind, filter, args, who, reason, created)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
    ON CONFLICT (request_id) DO NOTHING
RETURNING id
