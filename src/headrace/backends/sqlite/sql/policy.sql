-- Policies of queues, limits and pauses of tenants and tasks.

-- name: known
-- INTEGER PRIMARY KEY.
SELECT policy FROM queues WHERE qid = ?1

-- name: save
-- INTEGER PRIMARY KEY; queues_ruled, queues_idle.
UPDATE queues SET
    policy = ?2, turns = ?3, depth = ?4, holders = ?5, bounded = ?6, full_at = iif(?7, 0, full_at)
WHERE qid = ?1

-- name: reset_task_rate
-- PRIMARY KEY (qid, task).
UPDATE tasks SET full_at = 0 WHERE qid = ?1 AND task = ?2

-- name: govern
-- INTEGER PRIMARY KEY; queues_ruled, queues_idle.
UPDATE queues SET governed = ?2 WHERE qid = ?1

-- name: running
-- A scan of running: leases are few; INTEGER PRIMARY KEY of jobs.
SELECT r.seq, j.tenant FROM running AS r CROSS JOIN jobs AS j ON j.seq = r.seq WHERE r.qid = ?1

-- name: start
-- INTEGER PRIMARY KEY.
UPDATE running SET tid = ?2 WHERE seq = ?1

-- name: held
-- A scan of running: leases are few.
SELECT tid, holder FROM running WHERE qid = ?1 AND tid > 0

-- name: drop_holdings
-- UNIQUE (qid, name) of tenants, PRIMARY KEY (tid, holder).
DELETE FROM holdings WHERE tid IN (SELECT t.tid FROM tenants AS t WHERE t.qid = ?1)

-- name: untake
-- UNIQUE (qid, name): all tenants of the queue.
UPDATE tenants SET taken = 0 WHERE qid = ?1 AND taken

-- name: waiting
-- PRIMARY KEY of ready: one lane from its head on, already in its order; INTEGER PRIMARY KEY of jobs.
SELECT r.priority, r.run_at, r.id, r.seq, j.priority, j.tenant, j.task
FROM ready AS r CROSS JOIN jobs AS j ON j.seq = r.seq
WHERE r.lane = ?1
ORDER BY r.priority, r.run_at, r.id
LIMIT ?2

-- name: limit
-- PRIMARY KEY (qid, tenant); limits_over.
INSERT INTO limits (qid, tenant, running, every, burst) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT DO UPDATE SET running = excluded.running, every = excluded.every, burst = excluded.burst

-- name: pause_tenant
-- PRIMARY KEY (qid, tenant); limits_over.
INSERT INTO limits (qid, tenant, paused_until) VALUES (?1, ?2, ?3)
ON CONFLICT DO UPDATE SET paused_until = excluded.paused_until

-- name: pause_task
-- PRIMARY KEY (qid, task); tasks_over.
INSERT INTO tasks (qid, task, paused_until) VALUES (?1, ?2, ?3)
ON CONFLICT DO UPDATE SET paused_until = excluded.paused_until

-- name: any_over
-- Partial index limits_over.
SELECT 1 FROM limits INDEXED BY limits_over WHERE running IS NULL AND every IS NULL AND paused_until <= ?1 LIMIT 1

-- name: forget_limits
-- Partial index limits_over: pauses that are over, of tenants without a limit.
DELETE FROM limits INDEXED BY limits_over WHERE running IS NULL AND every IS NULL AND paused_until <= ?1

-- name: forget_tasks
-- Index tasks_over: pauses that are over, and rates that are saved up.
DELETE FROM tasks INDEXED BY tasks_over WHERE paused_until <= ?1 AND full_at <= ?1

-- name: all
-- Partial index queues_ruled, in its order.
SELECT qid, name, governed, full_at, policy FROM queues INDEXED BY queues_ruled
WHERE governed OR policy IS NOT NULL
ORDER BY name

-- name: named
-- UNIQUE (name), one probe per name.
SELECT q.qid, q.name, q.governed, q.full_at, q.policy
FROM carray(?1) AS wanted CROSS JOIN queues AS q ON q.name = wanted.value
WHERE q.governed OR q.policy IS NOT NULL

-- name: tenants
-- UNIQUE (qid, name) of tenants and PRIMARY KEY (qid, tenant) of limits, merged in their order.
SELECT t.name FROM tenants AS t WHERE t.qid = ?1 AND t.name >= ?2
UNION
SELECT m.tenant FROM limits AS m WHERE m.qid = ?1 AND m.tenant >= ?2
ORDER BY 1
LIMIT ?3

-- name: known_tenants
-- UNIQUE (qid, name) of tenants and PRIMARY KEY (qid, tenant) of limits, one probe per name.
SELECT wanted.value FROM carray(?2) AS wanted
WHERE wanted.value >= ?3 AND (
    EXISTS (SELECT 1 FROM tenants AS t WHERE t.qid = ?1 AND t.name = wanted.value)
    OR EXISTS (SELECT 1 FROM limits AS m WHERE m.qid = ?1 AND m.tenant = wanted.value)
)
LIMIT ?4

-- name: tenant
-- UNIQUE (qid, name).
SELECT tid, running, full_at, every, burst FROM tenants WHERE qid = ?1 AND name = ?2

-- name: limit_of
-- PRIMARY KEY (qid, tenant).
SELECT running, every, burst, paused_until FROM limits WHERE qid = ?1 AND tenant = ?2

-- name: waiting_of
-- UNIQUE (tid, task) of lanes, PRIMARY KEY of ready; a bounded number of jobs, delayed ones too.
SELECT count(*) FROM (
    SELECT 1 FROM lanes AS l CROSS JOIN ready AS r ON r.lane IN (l.lane, {delayed} - l.lane)
    WHERE l.tid = ?1
    LIMIT ?2
)

-- name: workers
-- A scan of running: leases are few; PRIMARY KEY of workers.
SELECT r.tid, r.holder, w.worker
FROM running AS r CROSS JOIN workers AS w ON w.holder = r.holder
WHERE r.qid = ?1 AND r.tid > 0 AND w.listed_until > ?2
