-- Ended jobs, in the order of their ends.

-- name: ends
-- Index ended_age, in its order: (state, finished_at >= then), those of one instant sorted; INTEGER PRIMARY KEY of jobs.
SELECT e.finished_at, j.id, e.size
FROM ended AS e INDEXED BY ended_age CROSS JOIN jobs AS j ON j.seq = e.seq
WHERE e.state = ?1 AND e.finished_at >= ?2 AND (e.finished_at > ?2 OR j.id > ?3)
ORDER BY e.finished_at, j.id
LIMIT ?4
