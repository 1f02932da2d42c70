-- Documents of all actions, of packs and of users, in the table of the policies of actions: in which version
-- of the set each came into force, whether it was taken back, and why. The target of a pack is its
-- ref here. Of what an older program wrote about an action the version is not known.
ALTER TABLE policy ADD COLUMN set_version INTEGER;
ALTER TABLE policy ADD COLUMN removed INTEGER NOT NULL DEFAULT 0 CHECK (removed IN (0, 1));
ALTER TABLE policy ADD COLUMN reason TEXT;
-- Rises with every change of a document, so that versions are in the order of the commits.
CREATE TABLE policy_set (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    version  INTEGER NOT NULL
) STRICT;
INSERT INTO policy_set (only_one, version) VALUES (1, 0);
-- By which version of the set each partition decides: written by its owner under its fence. Without a row
-- it is 0.
CREATE TABLE policy_progress (
    partition   INTEGER PRIMARY KEY CHECK (partition BETWEEN 0 AND 255),
    set_version INTEGER NOT NULL
) STRICT;
