SELECT count(*) FROM audit_log AS l
 WHERE NOT EXISTS (SELECT 1 FROM audit_chain AS c WHERE c.entry = l.id)
