-- The links after the number $1, each with its entry, if that is still there.
SELECT c.no, c.hash, l.id, (extract(epoch FROM l.at) * 1000000)::bigint AS at_micros, l.who, l.what, l.target,
       l.reason, l.before::text, l.after::text, l.request_id,
       l.actor_kind, l.key_id, l.source_ip, l.via
FROM attune.audit_chain AS c LEFT JOIN attune.audit_log AS l ON l.id = c.entry
WHERE c.no > $1::bigint ORDER BY c.no LIMIT $2::bigint
