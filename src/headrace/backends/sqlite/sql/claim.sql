-- Claims: every statement walks ranges of the primary key of ``ready`` from their head.

-- name: heads
-- PRIMARY KEY of ready, skipping from priority to priority: (lane, priority > last) and (lane, priority) at their head.
-- A queue that is paused or governed has one row, without a priority, and with the end of the pause if that is so.
WITH RECURSIVE level (qid, name, special, until, priority) AS (
    SELECT
        q.qid, q.name, q.governed OR q.paused_until > ?2, nullif(max(q.paused_until, ?2), ?2),
        CASE WHEN NOT q.governed AND q.paused_until <= ?2
            THEN (SELECT min(r.priority) FROM ready AS r WHERE r.lane = q.qid) END
    FROM carray(?1) AS wanted CROSS JOIN queues AS q ON q.name = wanted.value
    UNION ALL
    SELECT
        l.qid, l.name, 0, NULL,
        (SELECT min(r.priority) FROM ready AS r WHERE r.lane = l.qid AND r.priority > l.priority)
    FROM level AS l
    WHERE l.priority IS NOT NULL
)
SELECT
    l.priority, l.qid, l.name,
    CASE WHEN l.special THEN l.until
        ELSE (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = l.qid AND r.priority = l.priority) END
FROM level AS l
WHERE l.priority IS NOT NULL OR l.special

-- name: any_dying
-- Partial index ready_dying.
SELECT 1 FROM ready INDEXED BY ready_dying WHERE dies_at IS NOT NULL AND dies_at <= ?1 LIMIT 1

-- name: order
-- PRIMARY KEY of ready: (lane, priority, run_at <= now), already in claim order.
SELECT run_at, id, lane, size FROM ready
WHERE lane = ?1 AND priority = ?2 AND run_at <= ?3 AND (dies_at IS NULL OR dies_at > ?3) AND lost < ?5
ORDER BY run_at, id
LIMIT ?4

-- name: take
-- PRIMARY KEY of ready: (lane, priority, run_at <= now), already in claim order; INTEGER PRIMARY KEY of jobs.
SELECT
    r.run_at, r.id, r.epoch, r.attempt, r.lost, j.task, j.tenant, j.key, j.enqueued_at, j.max_attempts, j.timeout,
    j.result_ttl, j.far, j.headers, j.error, j.parameters, j.vm_state, j.metadata, j.blob, j.grp,
    r.size
FROM ready AS r LEFT JOIN jobs AS j ON j.seq = r.seq AND j.id = r.id
WHERE r.lane = ?1 AND r.priority = ?2 AND r.run_at <= ?3 AND (r.dies_at IS NULL OR r.dies_at > ?3) AND r.lost < ?5
ORDER BY r.run_at, r.id
LIMIT ?4

-- name: lease
-- PRIMARY KEY of ready: (lane, priority, (run_at, id) <= last taken).
INSERT INTO running (seq, qid, epoch, attempt, lost, size, lease_until, cancel, holder, gid, tid)
SELECT seq, lane, max(abs(epoch) + 1, ?3), attempt, lost, size, ?7, 0, ?8, gid, 0 FROM ready
WHERE lane = ?1 AND priority = ?2 AND (run_at, id) <= (?4, ?5) AND (dies_at IS NULL OR dies_at > ?3) AND lost < ?6

-- name: leave
-- PRIMARY KEY of ready: (lane, priority, (run_at, id) <= last taken).
DELETE FROM ready
WHERE lane = ?1 AND priority = ?2 AND (run_at, id) <= (?4, ?5) AND (dies_at IS NULL OR dies_at > ?3) AND lost < ?6

-- name: passed_over
-- Partial index ready_lost: the range of one lane and priority.
SELECT 1 FROM ready INDEXED BY ready_lost
WHERE lost > 0 AND lane = ?1 AND priority = ?2 AND (run_at, id) <= (?4, ?5) AND (dies_at IS NULL OR dies_at > ?3)
    AND lost >= ?6
LIMIT 1

-- name: dying
-- PRIMARY KEY of ready: the range that the claim has walked already; INTEGER PRIMARY KEY of jobs and of queues.
SELECT
    r.lane, r.priority, r.run_at, r.id, r.seq, r.epoch, r.attempt, r.lost, r.size, r.gid, q.qid, q.name, j.task,
    j.tenant, j.key
FROM ready AS r CROSS JOIN jobs AS j ON j.seq = r.seq CROSS JOIN queues AS q ON q.qid = j.qid
WHERE r.lane = ?1 AND r.priority = ?2 AND (r.run_at, r.id) <= (?4, ?5) AND r.dies_at <= ?3
ORDER BY r.run_at, r.id
LIMIT ?6
