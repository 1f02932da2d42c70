-- The requests next to ?1: their text has the order of their numbers.
SELECT (SELECT request_id FROM request
         WHERE request_id < ?1 ORDER BY request_id DESC LIMIT 1) AS above,
       (SELECT request_id FROM request
         WHERE request_id >= ?1 ORDER BY request_id LIMIT 1) AS below
