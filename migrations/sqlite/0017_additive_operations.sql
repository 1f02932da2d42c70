-- Bulk operations, in the order in which they were asked for. `args` are what its kind needs.
CREATE TABLE operation (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    request_id TEXT NOT NULL UNIQUE,
    kind       TEXT NOT NULL,
    filter     TEXT NOT NULL,
    args       TEXT NOT NULL,
    who        TEXT NOT NULL,
    reason     TEXT,
    created    TEXT NOT NULL
) STRICT;
-- How far each is in each partition that it is about: written by the partition's owner under its fence, in
-- the commits that do what is counted here. `upto` is the newest execution that is meant, `cursor` the last
-- one that was dealt with.
CREATE TABLE operation_progress (
    operation INTEGER NOT NULL REFERENCES operation (id) ON DELETE CASCADE,
    partition INTEGER NOT NULL,
    upto      INTEGER,
    cursor    INTEGER,
    matched   INTEGER NOT NULL DEFAULT 0,
    done      INTEGER NOT NULL DEFAULT 0,
    skipped   INTEGER NOT NULL DEFAULT 0,
    state     TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'running', 'done')),
    PRIMARY KEY (operation, partition)
) STRICT, WITHOUT ROWID;
CREATE INDEX operation_progress_open ON operation_progress (partition) WHERE state <> 'done';

-- Whether it goes before all others of its action, because an operator said so.
ALTER TABLE execution_active ADD COLUMN front INTEGER NOT NULL DEFAULT 0;
