-- What has been counted for a rate, an interval or a quota of an action, for one key (`by`). Written in the
-- commit that starts or accepts, under its fence, and read by whoever takes the partition over. `written_at`
-- is this clock's time of that commit; from `expires_at` on the row says nothing any more.
CREATE TABLE attune.meter (
    partition  integer NOT NULL,
    limit_id   text COLLATE "C" NOT NULL,
    key        bytea NOT NULL CHECK (octet_length(key) = 16),
    state      bytea NOT NULL,
    expires_at timestamptz NOT NULL,
    written_at timestamptz NOT NULL,
    PRIMARY KEY (partition, limit_id, key)
) WITH (fillfactor = 50);
