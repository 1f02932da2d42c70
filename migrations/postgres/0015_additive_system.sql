-- Which system this database belongs to. The broker keeps the same id, so that no other system meets in
-- the same virtual host under the same prefix. A copy of the database needs an id of its own before
-- anything is started on it.
CREATE TABLE attune.system (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    id       uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO attune.system DEFAULT VALUES;
