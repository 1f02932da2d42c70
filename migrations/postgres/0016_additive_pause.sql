-- What operators hold: nothing is granted from a queue while a row here covers it. `target` is the ref of
-- a pack or action, and empty for all.
CREATE TABLE attune.pause (
    scope  text NOT NULL CHECK (scope IN ('all', 'pack', 'action')),
    target text COLLATE "C" NOT NULL CHECK ((scope = 'all') = (target = '')),
    mode   text NOT NULL CHECK (mode IN ('pause', 'drain')),
    since  timestamptz NOT NULL DEFAULT clock_timestamp(),
    who    text NOT NULL,
    reason text,
    PRIMARY KEY (scope, target)
);
-- When something was resumed last: no wait there counts from before that.
CREATE TABLE attune.pause_resumed (
    scope  text NOT NULL,
    target text COLLATE "C" NOT NULL,
    at     timestamptz NOT NULL,
    PRIMARY KEY (scope, target)
);
-- Rises with every change, under its lock, so that versions are in the order of the commits. Whoever
-- changes `pause` by hand raises it in the same transaction, or owners see nothing of it.
CREATE TABLE attune.pause_set (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    version  bigint NOT NULL
);
INSERT INTO attune.pause_set (version) VALUES (0);
