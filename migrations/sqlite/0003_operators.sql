-- What operators need: who did what, and when a worker was last heard of.

-- What was done to the system by hand, and what it found wrong with itself. Written in the
-- transaction that makes the change, never changed afterwards. Changes of policies are in
-- `policy`, which keeps every version with who and when. `request_id` names the command, so that
-- a transaction that is repeated writes its entry once.
CREATE TABLE audit_log (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         TEXT NOT NULL,
    who        TEXT NOT NULL,
    what       TEXT NOT NULL,
    target     TEXT NOT NULL,
    reason     TEXT,
    before     TEXT,
    after      TEXT,
    request_id TEXT NOT NULL UNIQUE
) STRICT;

-- The API asks for the violations of the last day whenever it judges a queue.
CREATE INDEX audit_log_violation ON audit_log (at, target)
    WHERE what IN ('violation.order', 'violation.limit');

CREATE TRIGGER audit_log_is_never_changed BEFORE UPDATE ON audit_log
BEGIN
    SELECT raise(ABORT, 'audit_log is append-only');
END;
CREATE TRIGGER audit_log_is_never_emptied BEFORE DELETE ON audit_log
BEGIN
    SELECT raise(ABORT, 'audit_log is append-only');
END;

-- Absent for a worker that was last renewed by an older program.
ALTER TABLE worker_lease ADD COLUMN renewed_at TEXT;
