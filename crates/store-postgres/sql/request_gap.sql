-- The requests next to $1, over all days: each has an index of its own, so this reads a row of each.
SELECT (SELECT request_id FROM attune.request
        WHERE request_id < $1 ORDER BY request_id DESC LIMIT 1) AS above,
       (SELECT request_id FROM attune.request
        WHERE request_id >= $1 ORDER BY request_id LIMIT 1) AS below
