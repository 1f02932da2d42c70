-- Up to ?2 entries before the id ?1, the newest first.
SELECT id, at, who, what, target, reason, before, after, request_id, actor_kind, key_id, source_ip, via
  FROM audit_log
 WHERE id < ?1
 ORDER BY id DESC
 LIMIT ?2
