-- Keys of clients. Of a secret only the SHA-256 is kept; who has the row cannot make the key of it.
CREATE TABLE attune.api_key (
    key_id      text COLLATE "C" PRIMARY KEY CHECK (key_id ~ '^[0-9a-z]{12}$'),
    name        text COLLATE "C" NOT NULL CHECK (name <> ''),
    hash        bytea NOT NULL CHECK (length(hash) = 32),
    roles       text[] NOT NULL,
    -- Patterns over the refs of actions and the names of pools.
    actions     text[] NOT NULL DEFAULT '{*}',
    pools       text[] NOT NULL DEFAULT '{}',
    impersonate boolean NOT NULL DEFAULT false,
    rate        jsonb,
    max_waiting integer CHECK (max_waiting > 0),
    created     timestamptz NOT NULL DEFAULT now(),
    created_by  text NOT NULL,
    expires     timestamptz,
    revoked     timestamptz,
    revoked_by  text,
    last_used   timestamptz,
    last_ip     text
);
CREATE INDEX api_key_name ON attune.api_key (name, created);
