-- What grows is bounded.

-- The last snapshot of each minute in which a queue changed, for charts.
CREATE TABLE queue_stats_history (
    action_id       INTEGER NOT NULL,
    minute          TEXT NOT NULL,
    queue_length    INTEGER NOT NULL,
    active_count    INTEGER NOT NULL,
    total_enqueued  INTEGER NOT NULL,
    total_completed INTEGER NOT NULL,
    total_cancelled INTEGER NOT NULL,
    total_expired   INTEGER NOT NULL,
    PRIMARY KEY (action_id, minute)
) STRICT, WITHOUT ROWID;
CREATE INDEX queue_stats_history_minute ON queue_stats_history (minute);

-- Append-only, but what is older than a month may be removed by the upkeep.
DROP TRIGGER audit_log_is_never_emptied;
CREATE TRIGGER audit_log_is_never_emptied BEFORE DELETE ON audit_log
WHEN old.at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-30 days')
BEGIN
    SELECT raise(ABORT, 'audit_log is append-only');
END;
