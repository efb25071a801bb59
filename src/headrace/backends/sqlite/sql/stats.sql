-- The store in numbers.

-- name: queues
-- Every queue in use or paused, with its counters.
SELECT qid, name, governed, paused_until, available, running, jobs_paused, completed, cancelled, failed FROM queues
WHERE paused_until > ?1 OR available OR running OR jobs_paused OR completed OR cancelled OR failed

-- name: queues_named
-- The same for some, by UNIQUE (name).
SELECT qid, name, governed, paused_until, available, running, jobs_paused, completed, cancelled, failed FROM queues
WHERE name IN (SELECT value FROM json_each(?2))
AND (paused_until > ?1 OR available OR running OR jobs_paused OR completed OR cancelled OR failed)

-- name: plain
-- PRIMARY KEY of ready, for each lane: of those that are not due a bounded number; and of the others, skipping from
-- priority to priority, the heads.
SELECT
    wanted.value,
    (
        SELECT count(*)
        FROM (
            SELECT 1 FROM ready AS r
            WHERE r.lane = -1099511627776 - wanted.value AND r.priority = 0 AND r.run_at > ?2
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
    (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = -1099511627776 - wanted.value AND r.priority = 0)
FROM carray(?1) AS wanted

-- name: oldest
-- PRIMARY KEY of ready: the lanes of one queue, found by UNIQUE (qid, name) of tenants and UNIQUE (tid, task) of lanes,
-- skipping from priority to priority; and the head of each lane for later.
WITH RECURSIVE mine (lane) AS (
    SELECT ?1
    UNION ALL
    SELECT l.lane FROM tenants AS t CROSS JOIN lanes AS l ON l.tid = t.tid WHERE t.qid = ?1
),
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
    SELECT (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = -1099511627776 - m.lane AND r.priority = 0)
    FROM mine AS m
)

-- name: scheduled
-- PRIMARY KEY of ready: (lane for later, run_at > now) of each lane of one queue, a bounded number of jobs.
SELECT count(*)
FROM (
    SELECT 1
    FROM (
        SELECT ?1 AS lane
        UNION ALL
        SELECT l.lane FROM tenants AS t CROSS JOIN lanes AS l ON l.tid = t.tid WHERE t.qid = ?1
    ) AS mine
    CROSS JOIN ready AS r ON r.lane = -1099511627776 - mine.lane AND r.priority = 0 AND r.run_at > ?2
    LIMIT ?3
)

-- name: workers
-- The workers are few: they are looked through.
SELECT worker, queues, slots, busy, started_at, seen_at FROM workers WHERE listed_until > ?1

-- name: places
-- Five rows.
SELECT state, count, bytes FROM places
