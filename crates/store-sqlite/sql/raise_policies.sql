-- In the transaction of the change; there is one writer, so versions are in the order of the commits.
UPDATE policy_set SET version = version + 1 RETURNING version
