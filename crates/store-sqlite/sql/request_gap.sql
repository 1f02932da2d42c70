-- The requests next to ?1: their text has the order of their numbers.
SELECT (SELECT max(request_id) FROM request WHERE request_id < ?1) AS above,
       min(request_id) AS below
  FROM request
 WHERE request_id >= ?1
