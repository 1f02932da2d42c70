-- Each entry of the audit log is a link of a chain: its hash is made from the entry and the hash of the one
-- before. The program makes the links, in the transaction that writes the entries.
CREATE TABLE audit_chain (
    no    INTEGER PRIMARY KEY,
    entry INTEGER NOT NULL UNIQUE,
    hash  BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;
CREATE TRIGGER audit_chain_is_never_changed BEFORE UPDATE ON audit_chain
BEGIN
    SELECT raise(ABORT, 'audit_chain is append-only');
END;
-- A link goes when its entry is gone, but for the last.
CREATE TRIGGER audit_chain_is_never_emptied BEFORE DELETE ON audit_chain
WHEN EXISTS (SELECT 1 FROM audit_log WHERE id = old.entry)
BEGIN
    SELECT raise(ABORT, 'audit_chain is append-only');
END;
