-- Keys of clients. Of a secret only the SHA-256 is kept; who has the row cannot make the key of it. The lists
-- are JSON.
CREATE TABLE api_key (
    key_id      TEXT PRIMARY KEY CHECK (length(key_id) = 12),
    name        TEXT NOT NULL CHECK (name <> ''),
    hash        BLOB NOT NULL CHECK (length(hash) = 32),
    roles       TEXT NOT NULL,
    actions     TEXT NOT NULL,
    pools       TEXT NOT NULL,
    impersonate INTEGER NOT NULL CHECK (impersonate IN (0, 1)),
    rate        TEXT,
    max_waiting INTEGER CHECK (max_waiting > 0),
    created     TEXT NOT NULL,
    created_by  TEXT NOT NULL,
    expires     TEXT,
    revoked     TEXT,
    revoked_by  TEXT,
    last_used   TEXT,
    last_ip     TEXT
) STRICT;
CREATE INDEX api_key_name ON api_key (name, created);
