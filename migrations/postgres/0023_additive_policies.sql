-- Documents of all actions, of packs and of users, in the table of the policies of actions: in which version
-- of the set each came into force, whether it was taken back, and why. Of what an older program
-- wrote about an action the version is not known.
ALTER TABLE attune.policy
    ADD COLUMN set_version bigint,
    ADD COLUMN removed boolean NOT NULL DEFAULT false,
    ADD COLUMN reason text;
-- Rises with every change of a document, under its lock, so that versions are in the order of the commits.
-- Whoever changes `policy` by hand raises it in the same transaction, or owners see nothing of it.
CREATE TABLE attune.policy_set (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    version  bigint NOT NULL
);
INSERT INTO attune.policy_set (version) VALUES (0);
-- By which version of the set each partition decides: written by its owner under its fence. Without a row
-- it is 0.
CREATE TABLE attune.policy_progress (
    partition   integer PRIMARY KEY,
    set_version bigint NOT NULL
) WITH (fillfactor = 50);
