-- Queues: names, settings and counters.

-- name: {rules}
qid, name, governed, turns, depth, holders, bounded

-- name: find
-- UNIQUE (name).
SELECT {rules} FROM queues WHERE name = ?1

-- name: add
-- UNIQUE (name). The qid of a forgotten queue may be used again.
INSERT INTO queues (name) VALUES (?1) RETURNING {rules}

-- name: rules
-- INTEGER PRIMARY KEY.
SELECT {rules} FROM queues WHERE qid = ?1

-- name: configure
-- INTEGER PRIMARY KEY.
UPDATE queues SET paused_until = ?2 WHERE qid = ?1

-- name: stopped
-- Partial index queues_stopped.
SELECT name FROM queues INDEXED BY queues_stopped WHERE paused_until > 0 AND paused_until > ?1

-- name: tally
-- INTEGER PRIMARY KEY; once per transaction and touched queue.
UPDATE queues SET
    available = available + ?2, running = running + ?3, jobs_paused = jobs_paused + ?4,
    completed = completed + ?5, cancelled = cancelled + ?6, failed = failed + ?7, outlived = outlived + ?8
WHERE qid = ?1

-- name: place
-- INTEGER PRIMARY KEY; once per transaction and touched place.
UPDATE places SET count = count + ?2, bytes = bytes + ?3 WHERE state = ?1

-- name: {idle}
-- Partial index queues_idle.
SELECT qid FROM queues INDEXED BY queues_idle
WHERE paused_until <= ?1 AND NOT governed AND policy IS NULL
    AND available = 0 AND running = 0 AND jobs_paused = 0 AND completed = 0 AND cancelled = 0 AND failed = 0
    AND outlived = 0

-- name: any_idle
{idle} LIMIT 1

-- name: forget_idle
-- Bounded, so that a sweep stays a short step.
DELETE FROM queues WHERE qid IN ({idle} LIMIT 1000)

-- name: waiting
-- INTEGER PRIMARY KEY.
SELECT available + jobs_paused FROM queues WHERE qid = ?1

-- name: waiting_in_all
-- The counters of the queues.
SELECT coalesce(sum(available + jobs_paused), 0) FROM queues
