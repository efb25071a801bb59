-- name: by_state
SELECT state, count(*) FROM headrace.jobs_v1 WHERE task LIKE '%extract' GROUP BY state ORDER BY state;

-- name: failed
SELECT key, attempt, reason, error FROM headrace.jobs_v1 WHERE state = 'failed' ORDER BY finished_at;

-- name: waiting
SELECT key, attempt, error, run_at > now() AS later FROM headrace.jobs_v1 WHERE state = 'available' ORDER BY run_at;

-- name: events
SELECT r.uid, r.number, j.state, count(e.what) AS events
FROM artifact_revision AS r
LEFT JOIN headrace.jobs_v1 AS j ON j.key = r.uid || ':' || r.number
LEFT JOIN event AS e ON e.uid = r.uid AND e.number = r.number
GROUP BY r.uid, r.number, j.state ORDER BY r.uid, r.number;
