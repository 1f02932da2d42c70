-- An entry from a moment when the clock was ahead has a time that is still to come; the upkeep says when it goes.
DROP TRIGGER audit_log_is_never_emptied;
CREATE TRIGGER audit_log_is_never_emptied BEFORE DELETE ON audit_log
WHEN old.at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-30 days')
 AND old.at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
BEGIN
    SELECT raise(ABORT, 'audit_log is append-only');
END;
