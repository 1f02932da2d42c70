-- Entries for the audit log. A transaction that is repeated finds its entries there.
INSERT INTO audit_log (request_id, at, who, what, target, reason, before, after)
SELECT a.value ->> 'request_id', strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), a.value ->> 'who',
       a.value ->> 'what', a.value ->> 'target', a.value ->> 'reason', a.value ->> 'before',
       a.value ->> 'after'
  FROM jsonb_each(?1) AS a
 WHERE true
    ON CONFLICT (request_id) DO NOTHING
