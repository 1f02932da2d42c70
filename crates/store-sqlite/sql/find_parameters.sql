-- What it was given, as it was written, to be given once more.
SELECT parameters
  FROM execution
 WHERE id = ?1
