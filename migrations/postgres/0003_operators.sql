-- What operators need: who did what, and when a worker was last heard of.

-- What was done to the system by hand, and what it found wrong with itself. Written in the commit
-- that makes the change, never changed afterwards. Changes of policies are in `attune.policy`,
-- which keeps every version with who and when, so they are not written here again.
-- `request_id` names the command, so that a commit that is repeated writes its entry once.
CREATE TABLE attune.audit_log (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    who        text NOT NULL,
    what       text NOT NULL,
    target     text COLLATE "C" NOT NULL,
    reason     text,
    before     json,
    after      json,
    request_id uuid NOT NULL UNIQUE
);
-- The API asks for the violations of the last day whenever it judges a queue.
CREATE INDEX audit_log_violation ON attune.audit_log (at, target)
    WHERE what IN ('violation.order', 'violation.limit');

CREATE FUNCTION attune.refuse_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%.% is append-only', TG_TABLE_SCHEMA, TG_TABLE_NAME;
END;
$$;
CREATE TRIGGER audit_log_is_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON attune.audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION attune.refuse_change();

-- Absent for a worker that was last renewed by an older program.
ALTER TABLE attune.worker_lease ADD COLUMN renewed_at timestamptz;
