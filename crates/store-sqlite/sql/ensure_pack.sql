INSERT INTO pack (ref, created) VALUES (?1, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
    ON CONFLICT (ref) DO NOTHING
