-- What operators hold: nothing is granted from a queue while a row here covers it. `target` is the ref of
-- a pack or action, and empty for all.
CREATE TABLE pause (
    scope  TEXT NOT NULL CHECK (scope IN ('all', 'pack', 'action')),
    target TEXT NOT NULL CHECK ((scope = 'all') = (target = '')),
    mode   TEXT NOT NULL CHECK (mode IN ('pause', 'drain')),
    since  TEXT NOT NULL,
    who    TEXT NOT NULL,
    reason TEXT,
    PRIMARY KEY (scope, target)
) STRICT;
-- When something was resumed last: no wait there counts from before that.
CREATE TABLE pause_resumed (
    scope  TEXT NOT NULL,
    target TEXT NOT NULL,
    at     TEXT NOT NULL,
    PRIMARY KEY (scope, target)
) STRICT;
-- Rises with every change, so that versions are in the order of the commits.
CREATE TABLE pause_set (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    version  INTEGER NOT NULL
) STRICT;
INSERT INTO pause_set (only_one, version) VALUES (1, 0);
