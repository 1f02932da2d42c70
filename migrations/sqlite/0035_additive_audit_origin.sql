-- How it is known who did something: what kind of somebody, the public part of their key, the address and the way
-- that it came. Absent where it is not known, and in entries of before this. The program hashes them with the rest.
ALTER TABLE audit_log ADD COLUMN actor_kind TEXT;
ALTER TABLE audit_log ADD COLUMN key_id TEXT;
ALTER TABLE audit_log ADD COLUMN source_ip TEXT;
ALTER TABLE audit_log ADD COLUMN via TEXT;
