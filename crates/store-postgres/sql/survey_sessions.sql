-- How many connections each role of the system has to this database: their names are `attune-ROLE PURPOSE`.
-- Everybody may see the names of all.
SELECT substr(split_part(application_name, ' ', 1), 8) AS part, count(*)
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'attune-%'
GROUP BY 1 ORDER BY 1
