-- Delayed jobs. ?1 is a lane of delayed jobs, in which every priority is 0.

-- name: last
-- PRIMARY KEY of ready: the last of the first ?3 + 1 due jobs, if there are that many.
SELECT run_at, id FROM ready WHERE lane = ?1 AND priority = 0 AND run_at <= ?2
ORDER BY run_at, id
LIMIT 1 OFFSET ?3

-- name: next
-- PRIMARY KEY of ready, at the head of the lane.
SELECT run_at FROM ready WHERE lane = ?1 AND priority = 0 ORDER BY run_at LIMIT 1

-- name: set_lanes
-- PRIMARY KEY of ready: (lane, priority, (run_at, id) <= last); INTEGER PRIMARY KEY of jobs.
UPDATE jobs SET lane = ?4
WHERE seq IN (SELECT r.seq FROM ready AS r WHERE r.lane = ?1 AND r.priority = 0 AND (r.run_at, r.id) <= (?2, ?3))

-- name: promote
-- PRIMARY KEY of ready: (lane, priority, (run_at, id) <= last); INTEGER PRIMARY KEY of jobs.
UPDATE ready SET lane = ?4, priority = (SELECT j.priority FROM jobs AS j WHERE j.seq = ready.seq)
WHERE lane = ?1 AND priority = 0 AND (run_at, id) <= (?2, ?3)

-- name: moved
-- No table: how many rows the last statement changed.
SELECT changes()

-- name: early
-- PRIMARY KEY of ready: a whole lane, until a bounded number of jobs that are not due has been found. Here ?1 is a lane
-- of due jobs.
SELECT priority, run_at, id, seq FROM ready WHERE lane = ?1 AND run_at > ?2
ORDER BY priority, run_at, id
LIMIT ?3
