-- Entries for the audit log. A transaction that is repeated finds its entries there.
INSERT INTO audit_log (request_id, at, who, what, target, reason, before, after,
                       actor_kind, key_id, source_ip, via)
SELECT a.value ->> 'request_id', strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), a.value ->> 'who',
       a.value ->> 'what', a.value ->> 'target', a.value ->> 'reason', a.value ->> 'before',
       a.value ->> 'after', a.value ->> '$.origin[0]', a.value ->> '$.origin[1]', a.value ->> '$.origin[2]',
       a.value ->> '$.origin[3]'
  FROM jsonb_each(?1) AS a
 WHERE true
    ON CONFLICT (request_id) DO NOTHING
