-- The entries that are no link yet. They are written in the order of their ids.
SELECT id, at, who, what, target, reason, before, after, request_id, actor_kind, key_id, source_ip, via
  FROM audit_log
 WHERE id > (SELECT coalesce(max(entry), 0) FROM audit_chain)
 ORDER BY id
