UPDATE cluster SET bus = ?1 WHERE bus IS NULL
