INSERT INTO attune.api_key
    (key_id, name, hash, roles, actions, pools, impersonate, rate, max_waiting, created_by, expires)
VALUES ($1::text, $2::text, $3::bytea, $4::text[], $5::text[], $6::text[], $7::boolean, $8::text::jsonb,
        $9::integer, $10::text, now() + $11::bigint * interval '1 microsecond')
