-- Jobs by the objects that they refer to.

-- name: find
-- jobs_objects, as many entries as are wanted, and INTEGER PRIMARY KEY.
SELECT id, object_hour, parameters, vm_state, metadata, blob FROM jobs
WHERE object_hour < ?1 AND (object_hour, id) > (?2, ?3)
ORDER BY object_hour, id LIMIT ?4

-- name: cells
-- UNIQUE jobs_id; INTEGER PRIMARY KEY of ended.
SELECT j.seq, j.headers, j.error, e.result, j.parameters, j.vm_state, j.metadata, j.blob
FROM jobs AS j LEFT JOIN ended AS e ON e.seq = j.seq WHERE j.id = ?1

-- name: swap
-- INTEGER PRIMARY KEY; jobs_objects.
UPDATE jobs SET parameters = ?2, vm_state = ?3, metadata = ?4, blob = ?5, far = ?6, object_hour = ?7 WHERE seq = ?1

-- name: swap_result
-- INTEGER PRIMARY KEY.
UPDATE ended SET result = ?2 WHERE seq = ?1

-- name: grow_ready
-- INTEGER PRIMARY KEY of jobs; PRIMARY KEY of ready.
UPDATE ready SET size = size + ?2
WHERE (lane, priority, run_at, id) = (SELECT lane, iif(lane < 0, 0, priority), run_at, id FROM jobs WHERE seq = ?1)

-- name: grow_running
-- INTEGER PRIMARY KEY.
UPDATE running SET size = size + ?2 WHERE seq = ?1

-- name: grow_paused
-- INTEGER PRIMARY KEY.
UPDATE paused SET size = size + ?2 WHERE seq = ?1
