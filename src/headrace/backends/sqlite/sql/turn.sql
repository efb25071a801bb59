-- Claims from a governed queue. The steps are those of ``Backend.claim``: wake, next tenant, allowance, take, rest.

-- name: state
-- INTEGER PRIMARY KEY of queues; the heads of the partial indexes tenants_awake and tenants_asleep.
SELECT
    q.name, q.governed, q.round, q.full_at, q.running, q.policy,
    (SELECT min(t.wake_at) FROM tenants AS t INDEXED BY tenants_asleep WHERE t.qid = ?1 AND t.wake_at IS NOT NULL),
    EXISTS (
        SELECT 1 FROM tenants AS t INDEXED BY tenants_awake WHERE t.qid = ?1 AND t.taken = 0 AND t.since IS NOT NULL
    )
FROM queues AS q WHERE q.qid = ?1

-- name: tasks
-- PRIMARY KEY (qid, task): the tasks of one queue that are paused, or have spent some of their rate.
SELECT task, paused_until, full_at FROM tasks WHERE qid = ?1

-- name: wakes_more
-- Partial index tenants_asleep: whether more than so many tenants wake.
SELECT 1 FROM tenants AS t INDEXED BY tenants_asleep
WHERE t.qid = ?1 AND t.wake_at IS NOT NULL AND t.wake_at <= ?2
LIMIT 1 OFFSET ?3

-- name: wake
-- Partial index tenants_asleep: (qid, wake_at <= now), a bounded number; tenants_awake.
UPDATE tenants SET since = wake_at, wake_at = NULL, count = max(count, ?3)
WHERE tid IN (
    SELECT t.tid FROM tenants AS t INDEXED BY tenants_asleep
    WHERE t.qid = ?1 AND t.wake_at IS NOT NULL AND t.wake_at <= ?2
    ORDER BY t.wake_at
    LIMIT ?4
)

-- name: {tenant}
-- A row for each lane of a tenant, or one without a lane. PRIMARY KEY of ready: the head of each lane of delayed jobs.
SELECT
    one.count, one.since, one.name, one.tid, one.running, one.full_at, one.every, one.burst, m.running, m.every,
    m.burst, m.paused_until, one.lanes, l.lane, l.task,
    (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = {delayed} - l.lane AND r.priority = 0)

-- name: {limits_and_lanes}
-- PRIMARY KEY (qid, tenant) of limits; UNIQUE (tid, task) of lanes. If there are more than ?6, see ``some_lanes``.
LEFT JOIN limits AS m ON m.qid = one.qid AND m.tenant = one.name
LEFT JOIN lanes AS l ON l.tid = one.tid AND one.lanes <= ?6

-- name: awake
-- Partial index tenants_awake, in its order, from one tenant on.
{tenant}
FROM (
    SELECT t.* FROM tenants AS t INDEXED BY tenants_awake
    WHERE t.qid = ?1 AND t.taken = 0 AND t.since IS NOT NULL AND (t.count, t.since, t.name) > (?2, ?3, ?4)
    ORDER BY t.count, t.since, t.name
    LIMIT ?5
) AS one
{limits_and_lanes}

-- name: mine
-- As ``awake``, for tenants that have reached ``tenant_workers`` and have jobs with this holder. Index holdings_holder;
-- INTEGER PRIMARY KEY of tenants.
{tenant}
FROM holdings AS h INDEXED BY holdings_holder
CROSS JOIN tenants AS one ON one.tid = h.tid
{limits_and_lanes}
WHERE h.holder = ?2 AND one.qid = ?1 AND one.taken AND one.since IS NOT NULL

-- name: some_lanes
-- UNIQUE (tid, task) of lanes, some that follow each other; PRIMARY KEY of ready: the head of each lane of delayed jobs.
SELECT l.lane, l.task, (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = {delayed} - l.lane AND r.priority = 0)
FROM lanes AS l WHERE l.tid = ?1
ORDER BY l.task
LIMIT ?2 OFFSET ?3

-- name: first_of_all
-- UNIQUE (tid, task) of lanes; PRIMARY KEY of ready: the heads of each lane of a tenant and of its lane of delayed jobs.
SELECT min(ifnull(
    (SELECT r.run_at FROM ready AS r WHERE r.lane = l.lane ORDER BY r.priority, r.run_at, r.id LIMIT 1),
    (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = {delayed} - l.lane AND r.priority = 0)
))
FROM lanes AS l WHERE l.tid = ?1

-- name: any_mine
-- Index holdings_holder; INTEGER PRIMARY KEY of tenants.
SELECT 1 FROM holdings AS h INDEXED BY holdings_holder CROSS JOIN tenants AS t ON t.tid = h.tid
WHERE h.holder = ?2 AND t.qid = ?1 AND t.taken AND t.since IS NOT NULL
LIMIT 1

-- name: levels
-- PRIMARY KEY of ready, skipping from priority to priority: the first priorities, and the earliest ``run_at`` of each.
WITH RECURSIVE level (priority) AS (
    SELECT min(r.priority) FROM ready AS r WHERE r.lane = ?1
    UNION ALL
    SELECT (SELECT min(r.priority) FROM ready AS r WHERE r.lane = ?1 AND r.priority > l.priority)
    FROM level AS l
    WHERE l.priority IS NOT NULL
)
SELECT l.priority, (SELECT min(r.run_at) FROM ready AS r WHERE r.lane = ?1 AND r.priority = l.priority)
FROM level AS l WHERE l.priority IS NOT NULL
LIMIT ?2

-- name: {lane}
-- PRIMARY KEY of ready: a lane, already in its order; INTEGER PRIMARY KEY of jobs.
SELECT
    r.priority, r.run_at, r.id, r.seq, r.epoch, r.attempt, r.lost, r.size, r.dies_at, r.gid, j.key, j.enqueued_at,
    {j.carried}, j.far, j.headers, j.error, j.parameters, j.vm_state, j.metadata, j.blob,
    j.grp, r.lane
FROM ready AS r LEFT JOIN jobs AS j ON j.seq = r.seq AND j.id = r.id

-- name: lane_head
-- From its head on.
{lane}
WHERE r.lane = ?1
ORDER BY r.priority, r.run_at, r.id
LIMIT ?2

-- name: lane_after
-- From one job on.
{lane}
WHERE r.lane = ?1 AND (r.priority, r.run_at, r.id) > (?2, ?3, ?4)
ORDER BY r.priority, r.run_at, r.id
LIMIT ?5

-- name: lane_level
-- One priority, from one job on.
{lane}
WHERE r.lane = ?1 AND r.priority = ?2 AND (r.run_at, r.id) > (?3, ?4)
ORDER BY r.run_at, r.id
LIMIT ?5

-- name: {lease}
-- INTEGER PRIMARY KEY of running.
INSERT INTO running (seq, qid, epoch, attempt, lost, size, lease_until, cancel, holder, gid, tid, begun)
SELECT seq, ?1, max(abs(epoch) + 1, ?5), attempt, lost, size, ?2, 0, ?3, gid, ?4, epoch > 0 FROM ready

-- name: lease_head
-- PRIMARY KEY of ready: the first jobs of one priority of a lane.
{lease}
WHERE lane = ?6 AND priority = ?7 AND (run_at, id) <= (?8, ?9)

-- name: leave_head
-- PRIMARY KEY of ready: the first jobs of one priority of a lane.
DELETE FROM ready WHERE lane = ?1 AND priority = ?2 AND (run_at, id) <= (?3, ?4)

-- name: lease_run
-- PRIMARY KEY of ready: jobs that follow each other in one priority of a lane.
{lease}
WHERE lane = ?6 AND priority = ?7 AND (run_at, id) >= (?8, ?9) AND (run_at, id) <= (?10, ?11)

-- name: leave_run
-- PRIMARY KEY of ready: jobs that follow each other in one priority of a lane.
DELETE FROM ready WHERE lane = ?1 AND priority = ?2 AND (run_at, id) >= (?3, ?4) AND (run_at, id) <= (?5, ?6)

-- name: lease
-- INTEGER PRIMARY KEY of running.
INSERT INTO running (seq, qid, epoch, attempt, lost, size, lease_until, cancel, holder, gid, tid, begun)
VALUES (?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?)

-- name: served
-- INTEGER PRIMARY KEY; tenants_awake and tenants_idle: the tenant stays awake, and no rate of it has changed.
UPDATE tenants SET count = count + ?2, running = running + ?2 WHERE tid = ?1

-- name: visited
-- INTEGER PRIMARY KEY; tenants_awake, tenants_asleep and tenants_idle.
UPDATE tenants SET
    count = ?2, since = ?3, wake_at = ?4, full = ?5, running = running + ?6, lanes = lanes - ?7, full_at = ?8,
    every = ?9, burst = ?10
WHERE tid = ?1

-- name: went_on
-- INTEGER PRIMARY KEY.
UPDATE queues SET round = ?2, full_at = ?3 WHERE qid = ?1

-- name: spent
-- PRIMARY KEY (qid, task).
INSERT INTO tasks (qid, task, full_at) VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET full_at = excluded.full_at
