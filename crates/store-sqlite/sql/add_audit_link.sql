INSERT INTO audit_chain (no, entry, hash) VALUES (?1, ?2, ?3)
