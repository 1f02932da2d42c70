-- Follows commit.sql in the same transaction. A commit that is repeated finds its entries there.
INSERT INTO attune.audit_log (request_id, who, what, target, reason, before, after,
                              actor_kind, key_id, source_ip, via)
SELECT unnest($1::uuid[]), unnest($2::text[]), unnest($3::text[]), unnest($4::text[]),
       unnest($5::text[]), unnest($6::text[])::json, unnest($7::text[])::json,
       unnest($8::text[]), unnest($9::text[]), unnest($10::text[]), unnest($11::text[])
ON CONFLICT (request_id) DO NOTHING
