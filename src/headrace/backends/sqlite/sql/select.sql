-- The jobs that a selector means: found by walking all ids, or by looking through tables that are small enough.
-- ?1 is the qid, ?2 the tenant, ?3 the task, ?4 the latest enqueued_at; NULL: any.

-- name: {meant}
(?2 IS NULL OR j.tenant = ?2) AND (?3 IS NULL OR j.task = ?3) AND (?4 IS NULL OR j.enqueued_at <= ?4)

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
WHERE ?1 IS NULL AND {meant}

-- name: available_of_queue
-- PRIMARY KEY of ready: the lanes of one queue and their lanes of delayed jobs, found by UNIQUE (qid, name) of tenants
-- and of groups and UNIQUE (tid, task) of lanes; INTEGER PRIMARY KEY of jobs.
SELECT j.id, j.seq
FROM (
    SELECT ?1 AS lane
    UNION ALL
    SELECT {delayed} - ?1
    UNION ALL
    SELECT l.lane FROM tenants AS t CROSS JOIN lanes AS l ON l.tid = t.tid WHERE t.qid = ?1
    UNION ALL
    SELECT {delayed} - l.lane FROM tenants AS t CROSS JOIN lanes AS l ON l.tid = t.tid WHERE t.qid = ?1
    UNION ALL
    SELECT -g.gid FROM groups AS g WHERE g.qid = ?1
) AS mine
CROSS JOIN ready AS y ON y.lane = mine.lane
CROSS JOIN jobs AS j ON j.seq = y.seq
WHERE {meant}

-- name: running
-- A scan of running: leases are few; INTEGER PRIMARY KEY of jobs.
SELECT j.id, j.seq FROM running AS r CROSS JOIN jobs AS j ON j.seq = r.seq
WHERE (?1 IS NULL OR r.qid = ?1) AND {meant}

-- name: paused
-- All of paused; INTEGER PRIMARY KEY of jobs.
SELECT j.id, j.seq FROM paused AS p CROSS JOIN jobs AS j ON j.seq = p.seq
WHERE (?1 IS NULL OR p.qid = ?1) AND {meant}

-- name: ended
-- Index ended_age: the range of one state; INTEGER PRIMARY KEY of jobs.
SELECT j.id, j.seq FROM ended AS e INDEXED BY ended_age CROSS JOIN jobs AS j ON j.seq = e.seq
WHERE e.state = ?5 AND (?1 IS NULL OR j.qid = ?1) AND {meant}

-- name: {walked}
-- A bounded number of jobs, in the order of their ids, and whether each of them is meant; ?7 is the sum of 1 << code of
-- the states that are wanted. UNIQUE jobs_id; INTEGER PRIMARY KEY of running, paused and ended: a job that is in none
-- of them is AVAILABLE.
SELECT
    j.id, j.seq,
    (?1 IS NULL OR j.qid = ?1) AND {meant}
    AND (?7 = 63 OR ?7 & CASE
        WHEN EXISTS (SELECT 1 FROM running AS r WHERE r.seq = j.seq) THEN 2
        WHEN EXISTS (SELECT 1 FROM paused AS p WHERE p.seq = j.seq) THEN 4
        ELSE coalesce((SELECT 1 << e.state FROM ended AS e WHERE e.seq = j.seq), 1)
    END)
FROM jobs AS j INDEXED BY jobs_id

-- name: newer
{walked} WHERE j.id > ?5 ORDER BY j.id LIMIT ?6

-- name: older
{walked} WHERE j.id < ?5 ORDER BY j.id DESC LIMIT ?6
