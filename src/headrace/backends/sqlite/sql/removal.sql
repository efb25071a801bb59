-- Counts of what sweeps have removed.

-- name: add
-- INTEGER PRIMARY KEY of ended and jobs, one probe per seq; PRIMARY KEY of removals.
INSERT INTO removals (hour, state, task, tenant, jobs, bytes)
SELECT e.finished_at / 3600000000 AS hour, e.state, j.task, j.tenant, count(*), sum(e.size)
FROM carray(?1) AS wanted CROSS JOIN ended AS e ON e.seq = wanted.value CROSS JOIN jobs AS j ON j.seq = wanted.value
WHERE TRUE
GROUP BY hour, e.state, j.task, j.tenant
ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs, bytes = bytes + excluded.bytes

-- name: after
-- PRIMARY KEY, in its order.
SELECT hour, state, CAST(task AS BLOB), CAST(tenant AS BLOB), jobs, bytes FROM removals
WHERE hour = (SELECT min(hour) FROM removals WHERE hour > ?1)

-- name: forget
-- PRIMARY KEY, in its order. They are counted, and retention bounds their number.
DELETE FROM removals WHERE (hour, state, task, tenant) IN (
    SELECT hour, state, task, tenant FROM removals ORDER BY hour, state, task, tenant
    LIMIT min(?2, max(0, (SELECT count(*) FROM removals) - ?1))
)
RETURNING 1
