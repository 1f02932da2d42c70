SELECT count(*) FROM attune.audit_log AS l
WHERE NOT EXISTS (SELECT FROM attune.audit_chain AS c WHERE c.entry = l.id)
