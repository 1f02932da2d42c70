-- In the transaction of the change; there is one writer, so versions are in the order of the commits.
UPDATE pause_set SET version = version + 1
