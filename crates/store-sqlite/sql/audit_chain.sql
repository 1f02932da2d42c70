-- The links after the number ?1, each with its entry, if that is still there.
SELECT c.no, c.hash, l.id, l.at, l.who, l.what, l.target, l.reason, l.before, l.after, l.request_id,
       l.actor_kind, l.key_id, l.source_ip, l.via
  FROM audit_chain AS c LEFT JOIN audit_log AS l ON l.id = c.entry
 WHERE c.no > ?1
 ORDER BY c.no
 LIMIT ?2
