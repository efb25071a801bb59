-- The store in numbers.

-- name: {in_use}
-- Queues in use or paused, with their counters.
SELECT qid, name, governed, paused_until, available, running, jobs_paused, completed, cancelled, failed FROM queues
WHERE (paused_until > ?1 OR available OR running OR jobs_paused OR completed OR cancelled OR failed)

-- name: queues
-- INTEGER PRIMARY KEY: a bounded number of them.
{in_use} AND qid > ?2 ORDER BY qid LIMIT ?3

-- name: queues_named
-- UNIQUE (name).
{in_use} AND name IN (SELECT value FROM json_each(?2))

-- name: tenants
-- UNIQUE (qid, name): a bounded number of those from a name on.
SELECT tid, name, lanes FROM tenants WHERE qid = ?1 AND name >= ?2 ORDER BY name LIMIT ?3

-- name: lanes_of
-- UNIQUE (tid, task).
SELECT l.lane FROM carray(?1) AS wanted CROSS JOIN lanes AS l ON l.tid = wanted.value

-- name: lanes_of_one
-- UNIQUE (tid, task): a bounded number of those from a task on.
SELECT lane, task FROM lanes WHERE tid = ?1 AND task >= ?2 ORDER BY task LIMIT ?3

-- name: {first_levels}
-- PRIMARY KEY of ready: a bounded number of priorities of a lane, skipping from one to the next.
WITH RECURSIVE level (priority) AS (
    SELECT min(r.priority) FROM ready AS r WHERE r.lane = wanted.value
    UNION ALL
    SELECT (SELECT min(r.priority) FROM ready AS r WHERE r.lane = wanted.value AND r.priority > l.priority)
    FROM level AS l
    WHERE l.priority IS NOT NULL
    LIMIT ?4
)

-- name: lanes
-- PRIMARY KEY of ready, for each lane: a bounded number of its delayed jobs; the heads of its first priorities; the last
-- of these, if there may be more; the head of its lane of delayed jobs; and the first that is not due.
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
        {first_levels}
        SELECT min((SELECT min(r.run_at) FROM ready AS r WHERE r.lane = wanted.value AND r.priority = l.priority))
        FROM level AS l
    ),
    ({first_levels} SELECT l.priority FROM level AS l LIMIT 1 OFFSET ?4 - 1),
    (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = {delayed} - wanted.value AND r.priority = 0),
    (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = {delayed} - wanted.value AND r.priority = 0 AND r.run_at > ?2)
FROM carray(?1) AS wanted

-- name: levels
-- PRIMARY KEY of ready: the heads of a bounded number of priorities of one lane, above one of them; and the last of
-- these, if there may be more.
WITH RECURSIVE level (priority) AS (
    SELECT min(r.priority) FROM ready AS r WHERE r.lane = ?1 AND r.priority > ?2
    UNION ALL
    SELECT (SELECT min(r.priority) FROM ready AS r WHERE r.lane = ?1 AND r.priority > l.priority)
    FROM level AS l
    WHERE l.priority IS NOT NULL
    LIMIT ?3
)
SELECT
    min((SELECT min(r.run_at) FROM ready AS r WHERE r.lane = ?1 AND r.priority = l.priority)),
    CASE WHEN count(l.priority) = ?3 THEN max(l.priority) END
FROM level AS l

-- name: scheduled
-- PRIMARY KEY of ready: (lane of delayed jobs, run_at > now) of one lane, a bounded number of jobs.
SELECT count(*)
FROM (SELECT 1 FROM ready AS r WHERE r.lane = {delayed} - ?1 AND r.priority = 0 AND r.run_at > ?2 LIMIT ?3)

-- name: due
-- PRIMARY KEY of ready: some lanes, a bounded number of jobs.
SELECT count(*)
FROM (SELECT 1 FROM carray(?1) AS wanted CROSS JOIN ready AS r ON r.lane = wanted.value LIMIT ?2)

-- name: due_later
-- PRIMARY KEY of ready: (lane of delayed jobs, run_at <= now) of some lanes, a bounded number of jobs.
SELECT count(*)
FROM (
    SELECT 1 FROM carray(?1) AS wanted
    CROSS JOIN ready AS r ON r.lane = {delayed} - wanted.value AND r.priority = 0 AND r.run_at <= ?2
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
