-- Which jobs a selector means: by walking all ids, or by looking through tables that have few enough.
-- In the latter ?1 is the qid, ?2 the tenant, ?3 the task, ?4 the latest enqueued_at; NULL narrows nothing.

-- name: population
-- The counters of the queues: those of one, and those of all.
SELECT
    coalesce(sum(available) FILTER (WHERE qid = ?1), 0), coalesce(sum(running) FILTER (WHERE qid = ?1), 0),
    coalesce(sum(jobs_paused) FILTER (WHERE qid = ?1), 0), coalesce(sum(completed) FILTER (WHERE qid = ?1), 0),
    coalesce(sum(cancelled) FILTER (WHERE qid = ?1), 0), coalesce(sum(failed) FILTER (WHERE qid = ?1), 0),
    coalesce(sum(available), 0), coalesce(sum(running), 0), coalesce(sum(jobs_paused), 0),
    coalesce(sum(completed), 0), coalesce(sum(cancelled), 0), coalesce(sum(failed), 0)
FROM queues

-- name: available
-- PRIMARY KEY of ready: all of it; INTEGER PRIMARY KEY of jobs.
SELECT j.id, j.seq FROM ready AS y CROSS JOIN jobs AS j ON j.seq = y.seq
WHERE ?1 IS NULL AND (?2 IS NULL OR j.tenant = ?2) AND (?3 IS NULL OR j.task = ?3)
    AND (?4 IS NULL OR j.enqueued_at <= ?4)

-- name: available_of_queue
-- PRIMARY KEY of ready: the ranges of the lanes of one queue and of their lanes for later, found by UNIQUE (qid, name)
-- of tenants and of groups and UNIQUE (tid, task) of lanes; INTEGER PRIMARY KEY of jobs.
SELECT j.id, j.seq
FROM (
    SELECT ?1 AS lane
    UNION ALL
    SELECT -1099511627776 - ?1
    UNION ALL
    SELECT l.lane FROM tenants AS t CROSS JOIN lanes AS l ON l.tid = t.tid WHERE t.qid = ?1
    UNION ALL
    SELECT -1099511627776 - l.lane FROM tenants AS t CROSS JOIN lanes AS l ON l.tid = t.tid WHERE t.qid = ?1
    UNION ALL
    SELECT -g.gid FROM groups AS g WHERE g.qid = ?1
) AS mine
CROSS JOIN ready AS y ON y.lane = mine.lane
CROSS JOIN jobs AS j ON j.seq = y.seq
WHERE (?2 IS NULL OR j.tenant = ?2) AND (?3 IS NULL OR j.task = ?3) AND (?4 IS NULL OR j.enqueued_at <= ?4)

-- name: running
-- All of running, which is as small as the fleet; INTEGER PRIMARY KEY of jobs.
SELECT j.id, j.seq FROM running AS r CROSS JOIN jobs AS j ON j.seq = r.seq
WHERE (?1 IS NULL OR r.qid = ?1) AND (?2 IS NULL OR j.tenant = ?2) AND (?3 IS NULL OR j.task = ?3)
    AND (?4 IS NULL OR j.enqueued_at <= ?4)

-- name: paused
-- All of paused; INTEGER PRIMARY KEY of jobs.
SELECT j.id, j.seq FROM paused AS p CROSS JOIN jobs AS j ON j.seq = p.seq
WHERE (?1 IS NULL OR p.qid = ?1) AND (?2 IS NULL OR j.tenant = ?2) AND (?3 IS NULL OR j.task = ?3)
    AND (?4 IS NULL OR j.enqueued_at <= ?4)

-- name: ended
-- Index ended_age: the range of one state; INTEGER PRIMARY KEY of jobs.
SELECT j.id, j.seq FROM ended AS e INDEXED BY ended_age CROSS JOIN jobs AS j ON j.seq = e.seq
WHERE e.state = ?5 AND (?1 IS NULL OR j.qid = ?1) AND (?2 IS NULL OR j.tenant = ?2) AND (?3 IS NULL OR j.task = ?3)
    AND (?4 IS NULL OR j.enqueued_at <= ?4)

-- name: newer
-- UNIQUE jobs_id from ?5 upwards, a bounded number of jobs; ?7 is the sum of 1 << code of the states that are wanted.
-- INTEGER PRIMARY KEY of running, paused and ended: what is in none of them is AVAILABLE.
SELECT
    j.id, j.seq,
    (?1 IS NULL OR j.qid = ?1) AND (?2 IS NULL OR j.tenant = ?2) AND (?3 IS NULL OR j.task = ?3)
    AND (?4 IS NULL OR j.enqueued_at <= ?4)
    AND (?7 = 63 OR ?7 & CASE
        WHEN EXISTS (SELECT 1 FROM running AS r WHERE r.seq = j.seq) THEN 2
        WHEN EXISTS (SELECT 1 FROM paused AS p WHERE p.seq = j.seq) THEN 4
        ELSE coalesce((SELECT 1 << e.state FROM ended AS e WHERE e.seq = j.seq), 1)
    END)
FROM jobs AS j INDEXED BY jobs_id
WHERE j.id > ?5
ORDER BY j.id
LIMIT ?6

-- name: older
-- The same from ?5 downwards.
SELECT
    j.id, j.seq,
    (?1 IS NULL OR j.qid = ?1) AND (?2 IS NULL OR j.tenant = ?2) AND (?3 IS NULL OR j.task = ?3)
    AND (?4 IS NULL OR j.enqueued_at <= ?4)
    AND (?7 = 63 OR ?7 & CASE
        WHEN EXISTS (SELECT 1 FROM running AS r WHERE r.seq = j.seq) THEN 2
        WHEN EXISTS (SELECT 1 FROM paused AS p WHERE p.seq = j.seq) THEN 4
        ELSE coalesce((SELECT 1 << e.state FROM ended AS e WHERE e.seq = j.seq), 1)
    END)
FROM jobs AS j INDEXED BY jobs_id
WHERE j.id < ?5
ORDER BY j.id DESC
LIMIT ?6
