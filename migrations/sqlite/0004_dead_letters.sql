-- Messages that nobody could use, until they are put back or are old.
--
-- A message has one row however often it comes; `arrivals` counts that, so that marking it as put
-- back misses when it has come again meanwhile. `body` is what is kept of its `bytes`.
CREATE TABLE dead_letter (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    message_id  TEXT NOT NULL UNIQUE,
    reason      TEXT NOT NULL,
    source      TEXT NOT NULL,
    body        BLOB NOT NULL,
    bytes       INTEGER NOT NULL,
    truncated   INTEGER GENERATED ALWAYS AS (bytes > length(body)) STORED,
    arrivals    INTEGER NOT NULL DEFAULT 1,
    received_at TEXT NOT NULL,
    requeued_at TEXT,
    requeued_by TEXT
) STRICT;
