-- What is said about the target ?2 of the scope ?1, as it is in force; nothing when that was taken back.
SELECT CASE WHEN removed THEN NULL ELSE spec END AS spec
  FROM policy
 WHERE scope = ?1 AND target = ?2
 ORDER BY version DESC
 LIMIT 1
