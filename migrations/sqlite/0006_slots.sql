-- What one partition has active, in order; every index ends with the id by itself.
CREATE INDEX execution_active_partition ON execution_active (id & 255);
