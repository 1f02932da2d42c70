-- Says that the target ?2 in the scope ?1 is resumed now.
INSERT INTO pause_resumed (scope, target, at)
VALUES (?1, ?2, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
