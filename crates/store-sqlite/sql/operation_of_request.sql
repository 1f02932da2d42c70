SELECT id FROM operation WHERE request_id = ?1
