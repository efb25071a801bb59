-- Groups: which of their jobs are called.

-- name: find
-- UNIQUE (qid, name).
SELECT gid FROM groups WHERE qid = ?1 AND name = ?2

-- name: add
-- UNIQUE (qid, name).
INSERT INTO groups (qid, name) VALUES (?1, ?2) RETURNING gid

-- name: some
-- UNIQUE (qid, name), in its order.
SELECT gid, name FROM groups WHERE qid = ?1 AND name >= ?2 ORDER BY name LIMIT ?3

-- name: forget
-- INTEGER PRIMARY KEY. A group of which no job is called.
DELETE FROM groups WHERE gid = ?1 AND called = 0

-- name: called
-- PRIMARY KEY (gid, seq), INTEGER PRIMARY KEY of jobs, PRIMARY KEY of ready. No epoch: the job is RUNNING.
SELECT j.run_at, j.id, j.seq, j.lane, j.priority, j.tenant, y.epoch
FROM called AS c
CROSS JOIN jobs AS j ON j.seq = c.seq
LEFT JOIN ready AS y
    ON y.lane = j.lane AND y.priority = iif(j.lane < 0, 0, j.priority) AND y.run_at = j.run_at AND y.id = j.id
WHERE c.gid = ?1

-- name: number_called
-- INTEGER PRIMARY KEY.
SELECT called FROM groups WHERE gid = ?1

-- name: is_called
-- PRIMARY KEY (gid, seq).
SELECT 1 FROM called WHERE gid = ?1 AND seq = ?2

-- name: call
-- PRIMARY KEY (gid, seq).
INSERT INTO called (gid, seq) VALUES (?1, ?2)

-- name: leave
-- PRIMARY KEY (gid, seq).
DELETE FROM called WHERE gid = ?1 AND seq = ?2

-- name: first
-- PRIMARY KEY of ready: the head of one line, already in its order; INTEGER PRIMARY KEY of jobs.
SELECT r.run_at, r.id, r.seq, j.priority, j.tenant, j.task, r.epoch
FROM ready AS r CROSS JOIN jobs AS j ON j.seq = r.seq
WHERE r.lane = -?1 AND r.priority = 0
ORDER BY r.run_at, r.id
LIMIT 1

-- name: waiting
-- PRIMARY KEY of ready: one line, a bounded number of its jobs.
SELECT count(*) FROM (SELECT 1 FROM ready WHERE lane = -?1 LIMIT ?2)
