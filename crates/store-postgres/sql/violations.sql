-- The kinds in the words of the partial index audit_log_violation.
SELECT target, what, count(*), max(at)
FROM attune.audit_log
WHERE what IN ('violation.order', 'violation.limit')
  AND at > now() - $1::bigint * interval '1 microsecond'
  AND target = ANY($2::text[])
GROUP BY target, what ORDER BY target, what
