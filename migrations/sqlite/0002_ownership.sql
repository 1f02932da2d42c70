-- One row per executor process, renewed by it: among those that are alive the partitions are
-- shared. It guards nothing (the epochs of the partitions do), so it may be renewed late.
CREATE TABLE executor_lease (
    executor   TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    started_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;
