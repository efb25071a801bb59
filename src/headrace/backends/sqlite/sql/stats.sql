-- The store in numbers.

-- name: queues
-- Every queue in use or paused, with its counters.
SELECT qid, name, governed, paused_until, available, running, jobs_paused, completed, cancelled, failed FROM queues
WHERE paused_until > ?1 OR available OR running OR jobs_paused OR completed OR cancelled OR failed

-- name: heads
-- PRIMARY KEY of ready, skipping from priority to priority.
WITH RECURSIVE level (priority) AS (
    SELECT min(r.priority) FROM ready AS r WHERE r.lane = ?1
    UNION ALL
    SELECT (SELECT min(r.priority) FROM ready AS r WHERE r.lane = ?1 AND r.priority > l.priority)
    FROM level AS l
    WHERE l.priority IS NOT NULL
)
SELECT ?1, l.priority, (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = ?1 AND r.priority = l.priority)
FROM level AS l
WHERE l.priority IS NOT NULL

-- name: heads_of_lanes
-- The same for each lane of a governed queue, by UNIQUE (qid, name) of tenants and UNIQUE (tid, task) of lanes.
WITH RECURSIVE level (lane, priority) AS (
    SELECT l.lane, (SELECT min(r.priority) FROM ready AS r WHERE r.lane = l.lane)
    FROM tenants AS t CROSS JOIN lanes AS l ON l.tid = t.tid
    WHERE t.qid = ?1
    UNION ALL
    SELECT l.lane, (SELECT min(r.priority) FROM ready AS r WHERE r.lane = l.lane AND r.priority > l.priority)
    FROM level AS l
    WHERE l.priority IS NOT NULL
)
SELECT l.lane, l.priority, (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = l.lane AND r.priority = l.priority)
FROM level AS l
WHERE l.priority IS NOT NULL

-- name: scheduled
-- PRIMARY KEY of ready: (lane, priority, run_at > now), a bounded number of them.
SELECT count(*) FROM (SELECT 1 FROM ready WHERE lane = ?1 AND priority = ?2 AND run_at > ?3 LIMIT ?4)

-- name: workers
-- The workers are few: they are looked through.
SELECT worker, queues, slots, busy, started_at, seen_at FROM workers WHERE listed_until > ?1

-- name: places
-- Five rows.
SELECT state, count, bytes FROM places
