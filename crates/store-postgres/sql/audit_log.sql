SELECT id, at, who, what, target, reason, before::text, after::text, request_id,
       actor_kind, key_id, source_ip, via
FROM attune.audit_log WHERE id < $1::bigint ORDER BY id DESC LIMIT $2::bigint
