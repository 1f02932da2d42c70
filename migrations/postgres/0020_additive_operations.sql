-- Bulk operations, in the order in which they were asked for. `args` are what its kind needs.
CREATE TABLE attune.operation (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    request_id uuid NOT NULL UNIQUE,
    kind       text NOT NULL,
    filter     json NOT NULL,
    args       json NOT NULL,
    who        text NOT NULL,
    reason     text,
    created    timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- How far each is in each partition that it is about: written by the partition's owner under its fence, in
-- the commits that do what is counted here. `upto` is the newest execution that is meant, `cursor` the last
-- one that was dealt with.
CREATE TABLE attune.operation_progress (
    operation bigint NOT NULL REFERENCES attune.operation (id) ON DELETE CASCADE,
    partition integer NOT NULL,
    upto      bigint,
    cursor    bigint,
    matched   bigint NOT NULL DEFAULT 0,
    done      bigint NOT NULL DEFAULT 0,
    skipped   bigint NOT NULL DEFAULT 0,
    state     text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'running', 'done')),
    PRIMARY KEY (operation, partition)
) WITH (fillfactor = 50);
-- What is open: nearly nothing. No commit of a page changes a column of it but the last.
CREATE INDEX operation_progress_open ON attune.operation_progress (partition) WHERE state <> 'done';

-- Whether it goes before all others of its action, because an operator said so.
ALTER TABLE attune.execution_active ADD COLUMN front boolean NOT NULL DEFAULT false;
