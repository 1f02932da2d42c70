SELECT id, partition, version, spec FROM action WHERE ref = ?1
