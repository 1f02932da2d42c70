SELECT id FROM attune.operation WHERE request_id = $1::uuid
