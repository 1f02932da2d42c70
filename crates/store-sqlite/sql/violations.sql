-- The violations of the last ?1 seconds in the actions ?2. The kinds are tested in the words of the index
-- audit_log_violation.
SELECT target, what, count(*) AS entries, max(at) AS last_at
  FROM audit_log
 WHERE what IN ('violation.order', 'violation.limit')
   AND at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || ?1 || ' seconds')
   AND target IN (SELECT value FROM json_each(?2))
 GROUP BY target, what
 ORDER BY target, what
