-- Retention.

-- name: place
-- INTEGER PRIMARY KEY.
SELECT count, bytes FROM places WHERE state = ?1

-- name: oldest
-- Index ended_age, in its order: (state) at its head.
SELECT seq, finished_at, size FROM ended INDEXED BY ended_age
WHERE state = ?1
ORDER BY finished_at, held_until, seq
LIMIT ?2

-- name: aged
-- Index ended_age, in its order: (state, finished_at <= then). What is held is passed over in the index.
SELECT seq, size FROM ended INDEXED BY ended_age
WHERE state = ?1 AND finished_at <= ?2 AND held_until <= ?3
ORDER BY finished_at, held_until, seq
LIMIT ?4

-- name: named
-- UNIQUE jobs_id; INTEGER PRIMARY KEY of ended. The epoch of a job that had not begun is stored as a negative one.
SELECT e.seq, e.size FROM jobs AS j CROSS JOIN ended AS e ON e.seq = j.seq
WHERE j.id = ?1 AND e.state = ?2 AND abs(e.epoch) = ?3 AND e.finished_at <= ?4 AND (e.state <> 3 OR e.held_until <= ?5)

-- name: queues
-- INTEGER PRIMARY KEY of jobs, one probe per seq.
SELECT j.qid FROM carray(?1) AS wanted CROSS JOIN jobs AS j ON j.seq = wanted.value

-- name: keys
-- Partial index keys_outlived, in its order.
SELECT qid, key, held_until FROM keys INDEXED BY keys_outlived
WHERE held_until IS NOT NULL
ORDER BY held_until
LIMIT ?1

-- name: results
-- Partial index ended_held, in its order; INTEGER PRIMARY KEY of cells for big results.
SELECT
    e.seq, e.result,
    CASE typeof(e.result)
        WHEN 'integer' THEN (SELECT length(c.data) FROM cells AS c WHERE c.cell = e.result)
        ELSE length(e.result)
    END
FROM ended AS e INDEXED BY ended_held
WHERE e.result IS NOT NULL AND e.held_until <= ?1
ORDER BY e.held_until
LIMIT ?2

-- name: clear_result
-- INTEGER PRIMARY KEY; ended_held.
UPDATE ended SET result = NULL, size = size - ?2 WHERE seq = ?1
