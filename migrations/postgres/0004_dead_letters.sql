-- Messages that nobody could use, until they are put back or are old.
--
-- A message has one row however often it comes; `arrivals` counts that, so that marking it as put
-- back misses when it has come again meanwhile. `body` is what is kept of its `bytes`.
CREATE TABLE attune.dead_letter (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id  uuid NOT NULL UNIQUE,
    reason      text NOT NULL,
    source      text NOT NULL,
    body        bytea NOT NULL,
    bytes       bigint NOT NULL,
    truncated   boolean GENERATED ALWAYS AS (bytes > octet_length(body)) STORED,
    arrivals    bigint NOT NULL DEFAULT 1,
    received_at timestamptz NOT NULL DEFAULT now(),
    requeued_at timestamptz,
    requeued_by text
);
