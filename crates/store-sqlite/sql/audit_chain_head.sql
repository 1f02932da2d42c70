SELECT no, hash FROM audit_chain ORDER BY no DESC LIMIT 1
