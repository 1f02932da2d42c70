-- What has been counted for a rate, an interval or a quota of an action, for one key (`by`). Written in the
-- commit that starts or accepts, under its fence, and read by whoever takes the partition over. `written_at`
-- is this clock's time of that commit; from `expires_at` on the row says nothing any more. `key` and `state`
-- are in hexadecimal digits.
CREATE TABLE meter (
    partition  INTEGER NOT NULL,
    limit_id   TEXT NOT NULL,
    key        TEXT NOT NULL CHECK (length(key) = 32),
    state      TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    written_at TEXT NOT NULL,
    PRIMARY KEY (partition, limit_id, key)
) STRICT, WITHOUT ROWID;
