-- The store in numbers.

-- name: {in_use}
-- Queues in use or paused, with their counters.
SELECT qid, name, governed, paused_until, available, running, jobs_paused, completed, cancelled, failed FROM queues
WHERE (paused_until > ?1 OR available OR running OR jobs_paused OR completed OR cancelled OR failed)

-- name: queues
{in_use}

-- name: queues_named
-- UNIQUE (name).
{in_use} AND name IN (SELECT value FROM json_each(?2))

-- name: plain
-- PRIMARY KEY of ready, for each lane: a bounded number of its delayed jobs; the heads of its priorities, skipping from
-- one to the next; and the head of its lane of delayed jobs.
SELECT
    wanted.value,
    (
        SELECT count(*)
        FROM (
            SELECT 1 FROM ready AS r
            WHERE r.lane = {delayed} - wanted.value AND r.priority = 0 AND r.run_at > ?2
            LIMIT ?3
        )
    ),
    (
        WITH RECURSIVE level (priority) AS (
            SELECT min(r.priority) FROM ready AS r WHERE r.lane = wanted.value
            UNION ALL
            SELECT (SELECT min(r.priority) FROM ready AS r WHERE r.lane = wanted.value AND r.priority > l.priority)
            FROM level AS l
            WHERE l.priority IS NOT NULL
        )
        SELECT min((SELECT min(r.run_at) FROM ready AS r WHERE r.lane = wanted.value AND r.priority = l.priority))
        FROM level AS l
    ),
    (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = {delayed} - wanted.value AND r.priority = 0)
FROM carray(?1) AS wanted

-- name: {mine}
-- UNIQUE (qid, name) of tenants, UNIQUE (tid, task) of lanes: all lanes of one queue.
SELECT ?1 AS lane UNION ALL SELECT l.lane FROM tenants AS t CROSS JOIN lanes AS l ON l.tid = t.tid WHERE t.qid = ?1

-- name: oldest
-- PRIMARY KEY of ready: each lane of one queue, skipping from priority to priority; and the head of each lane of delayed
-- jobs.
WITH RECURSIVE mine (lane) AS ({mine}),
level (lane, priority) AS (
    SELECT m.lane, (SELECT min(r.priority) FROM ready AS r WHERE r.lane = m.lane) FROM mine AS m
    UNION ALL
    SELECT l.lane, (SELECT min(r.priority) FROM ready AS r WHERE r.lane = l.lane AND r.priority > l.priority)
    FROM level AS l
    WHERE l.priority IS NOT NULL
)
SELECT min(run_at)
FROM (
    SELECT (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = l.lane AND r.priority = l.priority) AS run_at
    FROM level AS l
    WHERE l.priority IS NOT NULL
    UNION ALL
    SELECT (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = {delayed} - m.lane AND r.priority = 0)
    FROM mine AS m
)

-- name: scheduled
-- PRIMARY KEY of ready: (lane of delayed jobs, run_at > now) of each lane of one queue, a bounded number of jobs.
SELECT count(*)
FROM (
    SELECT 1 FROM ({mine}) AS mine
    CROSS JOIN ready AS r ON r.lane = {delayed} - mine.lane AND r.priority = 0 AND r.run_at > ?2
    LIMIT ?3
)

-- name: due
-- PRIMARY KEY of ready: each lane of one queue, a bounded number of jobs.
SELECT count(*)
FROM (
    SELECT 1 FROM ({mine}) AS mine
    CROSS JOIN ready AS r ON r.lane = mine.lane
    LIMIT ?2
)

-- name: due_later
-- PRIMARY KEY of ready: (lane of delayed jobs, run_at <= now) of each lane of one queue, a bounded number of jobs.
SELECT count(*)
FROM (
    SELECT 1 FROM ({mine}) AS mine
    CROSS JOIN ready AS r ON r.lane = {delayed} - mine.lane AND r.priority = 0 AND r.run_at <= ?2
    LIMIT ?3
)

-- name: workers
-- A scan: workers are few.
SELECT worker, queues, slots, busy, started_at, seen_at FROM workers WHERE listed_until > ?1

-- name: places
-- Five rows.
SELECT state, count, bytes FROM places

-- name: pages
-- No table.
SELECT page_count, freelist_count, page_size FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()
