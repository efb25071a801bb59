-- Claims: every statement walks ranges of the primary key of ``ready`` from their head.

-- name: heads
-- UNIQUE (name) of queues, one probe per name; PRIMARY KEY of ready: the head of each lane, and of its lane of delayed
-- jobs. The lanes of a queue that is paused or governed are not read. The fourth column is the end of the pause.
SELECT
    q.qid, q.name, q.governed, nullif(max(q.paused_until, ?2), ?2),
    r.priority, r.run_at, r.id,
    CASE WHEN NOT q.governed AND q.paused_until <= ?2 THEN (
        SELECT min(l.run_at) FROM ready AS l WHERE l.lane = {delayed} - q.qid AND l.priority = 0
    ) END
FROM carray(?1) AS wanted
CROSS JOIN queues AS q ON q.name = wanted.value
LEFT JOIN ready AS r ON r.lane = q.qid AND NOT q.governed AND q.paused_until <= ?2
    AND (r.priority, r.run_at, r.id) = (
        SELECT h.priority, h.run_at, h.id FROM ready AS h WHERE h.lane = q.qid
        ORDER BY h.priority, h.run_at, h.id
        LIMIT 1
    )

-- name: head_below
-- PRIMARY KEY of ready: one lane from its head on, as far as the claim has walked it.
SELECT priority, run_at, id FROM ready WHERE lane = ?1 AND lost < ?2 ORDER BY priority, run_at, id LIMIT 1

-- name: any_due
-- UNIQUE (name) of queues, one probe per name; PRIMARY KEY of ready: the heads of lanes, up to the first
-- that has something.
SELECT 1 FROM carray(?1) AS wanted CROSS JOIN queues AS q ON q.name = wanted.value
WHERE NOT q.governed AND q.paused_until <= ?2 AND (
    EXISTS (SELECT 1 FROM ready AS r WHERE r.lane = q.qid)
    OR EXISTS (
        SELECT 1 FROM ready AS l WHERE l.lane = {delayed} - q.qid AND l.priority = 0 AND l.run_at <= ?2
    )
)
LIMIT 1

-- name: first_queues
-- As ``heads``; a bounded number of queues. Queues in which a claim has more to do than to take the first job (they are
-- governed, or the job has expired, is passed over or is not due, or others can be promoted) come first; then the
-- others, in claim order.
SELECT
    q.name, q.governed,
    q.governed OR ifnull(r.dies_at <= ?2, 0) OR ifnull(r.lost >= ?3, 0) OR ifnull(r.run_at > ?2, 0) OR EXISTS (
        SELECT 1 FROM ready AS l WHERE l.lane = {delayed} - q.qid AND l.priority = 0 AND l.run_at <= ?2
    ) AS special
FROM carray(?1) AS wanted
CROSS JOIN queues AS q ON q.name = wanted.value
LEFT JOIN ready AS r ON r.lane = q.qid AND (r.priority, r.run_at, r.id) = (
    SELECT h.priority, h.run_at, h.id FROM ready AS h WHERE h.lane = q.qid
    ORDER BY h.priority, h.run_at, h.id
    LIMIT 1
)
WHERE q.paused_until <= ?2 AND (r.lane IS NOT NULL OR special)
ORDER BY special DESC, r.priority, r.run_at, r.id
LIMIT ?4

-- name: any_expired
-- Partial index ready_dying.
SELECT 1 FROM ready INDEXED BY ready_dying WHERE dies_at IS NOT NULL AND dies_at <= ?1 LIMIT 1

-- name: count_expired
-- Partial index ready_doomed: (lane, dies_at <= now) of each lane, a bounded number of jobs.
SELECT count(*) FROM (
    SELECT 1 FROM carray(?1) AS wanted
    CROSS JOIN ready AS r INDEXED BY ready_doomed
    WHERE r.lane = wanted.value AND r.dies_at IS NOT NULL AND r.dies_at <= ?2
    LIMIT ?3
)

-- name: dying
-- Partial index ready_doomed: the lanes that have at least so many jobs that have expired.
SELECT wanted.value FROM carray(?1) AS wanted
WHERE ?3 <= (
    SELECT count(*) FROM (
        SELECT 1 FROM ready AS r INDEXED BY ready_doomed
        WHERE r.lane = wanted.value AND r.dies_at IS NOT NULL AND r.dies_at <= ?2
        LIMIT ?3
    )
)

-- name: ahead
-- PRIMARY KEY of ready: one lane from its head on, already in claim order. The last column: whether it has expired.
SELECT priority, run_at, id, ifnull(dies_at <= ?2, 0) FROM ready
WHERE lane = ?1
ORDER BY priority, run_at, id
LIMIT ?3

-- name: order
-- PRIMARY KEY of ready: one lane from one job on, already in claim order.
SELECT priority, run_at, id, size FROM ready
WHERE lane = ?1 AND (priority, run_at, id) > (?2, ?3, ?4) AND run_at <= ?5 AND (dies_at IS NULL OR dies_at > ?5)
    AND lost < ?6 AND (priority, run_at, id) <= (?8, ?9, ?10)
ORDER BY priority, run_at, id
LIMIT ?7

-- name: order_with_cells
-- The same; INTEGER PRIMARY KEY of jobs.
SELECT r.priority, r.run_at, r.id, r.size, j.parameters, j.vm_state, j.metadata, j.blob
FROM ready AS r LEFT JOIN jobs AS j ON j.seq = r.seq AND j.id = r.id
WHERE r.lane = ?1 AND (r.priority, r.run_at, r.id) > (?2, ?3, ?4) AND r.run_at <= ?5
    AND (r.dies_at IS NULL OR r.dies_at > ?5) AND r.lost < ?6 AND (r.priority, r.run_at, r.id) <= (?8, ?9, ?10)
ORDER BY r.priority, r.run_at, r.id
LIMIT ?7

-- name: take
-- PRIMARY KEY of ready: one lane from its head on, already in claim order; INTEGER PRIMARY KEY of jobs.
SELECT
    r.priority, r.run_at, r.id, r.epoch, r.attempt, r.lost, j.task, j.tenant, j.key, j.enqueued_at, {j.carried},
    j.far, j.headers, j.error, j.parameters, j.vm_state, j.metadata, j.blob, j.grp, r.size
FROM ready AS r LEFT JOIN jobs AS j ON j.seq = r.seq AND j.id = r.id
WHERE r.lane = ?1 AND (r.dies_at IS NULL OR r.dies_at > ?2) AND r.lost < ?3
    AND (r.priority, r.run_at, r.id) <= (?5, ?6, ?7)
ORDER BY r.priority, r.run_at, r.id
LIMIT ?4

-- name: {lease}
-- INTEGER PRIMARY KEY of running.
INSERT INTO running (seq, qid, epoch, attempt, lost, size, lease_until, cancel, holder, gid, tid, begun)
SELECT seq, lane, max(abs(epoch) + 1, ?2), attempt, lost, size, ?7, 0, ?8, gid, 0, epoch > 0 FROM ready

-- name: {taken}
-- PRIMARY KEY of ready: one lane up to the last job taken.
WHERE lane = ?1 AND (priority, run_at, id) <= (?4, ?5, ?6) AND (dies_at IS NULL OR dies_at > ?2) AND lost < ?3

-- name: {taken_alike}
-- PRIMARY KEY of ready: one priority of a lane up to the last job taken. Costs less than ``{taken}`` if all jobs taken
-- have one priority.
WHERE lane = ?1 AND priority = ?4 AND (run_at, id) <= (?5, ?6) AND (dies_at IS NULL OR dies_at > ?2) AND lost < ?3

-- name: lease
{lease} {taken}

-- name: leave
DELETE FROM ready {taken}

-- name: lease_alike
{lease} {taken_alike}

-- name: leave_alike
DELETE FROM ready {taken_alike}

-- name: passed_over
-- Partial index ready_lost: one range of each lane. The lanes in which the claim passed over a job.
SELECT wanted.value FROM carray(?1) AS wanted
WHERE EXISTS (
    SELECT 1 FROM ready AS r INDEXED BY ready_lost
    WHERE r.lost > 0 AND r.lane = wanted.value AND (r.priority, r.run_at, r.id) <= (?4, ?5, ?6) AND r.run_at <= ?2
        AND (r.dies_at IS NULL OR r.dies_at > ?2) AND r.lost >= ?3
)

-- name: expired
-- PRIMARY KEY of ready: the ranges that the claim has walked already; INTEGER PRIMARY KEY of jobs and of queues.
SELECT
    r.lane, r.priority, r.run_at, r.id, r.seq, r.epoch, r.attempt, r.lost, r.size, r.gid, q.qid, q.name, j.task,
    j.tenant, j.key
FROM carray(?1) AS wanted
CROSS JOIN ready AS r ON r.lane = wanted.value
CROSS JOIN jobs AS j ON j.seq = r.seq
CROSS JOIN queues AS q ON q.qid = j.qid
WHERE (r.priority, r.run_at, r.id) <= (?3, ?4, ?5) AND r.dies_at <= ?2
LIMIT ?6

-- name: choose
-- INTEGER PRIMARY KEY of queues. Nobody is chosen now, and this holder was not the last one, or its time ran out more
-- than a lease ago.
UPDATE queues SET chosen = ?2, chosen_until = ?3 + ?4
WHERE qid = ?1 AND chosen_until <= ?3 AND (chosen IS NOT ?2 OR chosen_until + ?4 <= ?3)

-- name: chosen
-- INTEGER PRIMARY KEY of queues.
SELECT 1 FROM queues WHERE qid = ?1 AND chosen = ?2 AND chosen_until > ?3

-- name: stay_chosen
-- UNIQUE (name) of queues.
UPDATE queues SET chosen_until = ?3 WHERE name IN (SELECT value FROM carray(?1)) AND chosen = ?2
