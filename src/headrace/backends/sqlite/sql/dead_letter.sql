-- Dead letters of each tenant.

-- name: add
-- INTEGER PRIMARY KEY of ended and jobs, PRIMARY KEY (tenant, finished_at, seq) of dead, one probe each per seq.
INSERT INTO dead (tenant, finished_at, seq, size)
SELECT j.tenant, e.finished_at, e.seq, e.size
FROM carray(?1) AS wanted CROSS JOIN ended AS e ON e.seq = wanted.value CROSS JOIN jobs AS j ON j.seq = e.seq

-- name: remove
-- INTEGER PRIMARY KEY of ended and jobs, PRIMARY KEY (tenant, finished_at, seq) of dead, one probe each per seq.
DELETE FROM dead WHERE (tenant, finished_at, seq) IN (
    SELECT j.tenant, e.finished_at, e.seq
    FROM carray(?1) AS wanted CROSS JOIN ended AS e ON e.seq = wanted.value CROSS JOIN jobs AS j ON j.seq = e.seq
    WHERE e.state = 5
)

-- name: share
-- INTEGER PRIMARY KEY of ended and jobs, PRIMARY KEY (tenant) of shares, one probe each per seq.
INSERT INTO shares (tenant, jobs, bytes)
SELECT j.tenant, ?2 * count(*), ?2 * sum(e.size)
FROM carray(?1) AS wanted CROSS JOIN ended AS e ON e.seq = wanted.value CROSS JOIN jobs AS j ON j.seq = e.seq
WHERE e.state = 5
GROUP BY j.tenant
ON CONFLICT (tenant) DO UPDATE SET jobs = jobs + excluded.jobs, bytes = bytes + excluded.bytes

-- name: no_share
-- Index shares_jobs.
DELETE FROM shares WHERE jobs <= 0

-- name: heaviest_by_jobs
-- Index shares_jobs, from its end.
SELECT CAST(tenant AS BLOB), jobs FROM shares INDEXED BY shares_jobs ORDER BY jobs DESC LIMIT ?1

-- name: heaviest_by_bytes
-- Index shares_bytes, from its end.
SELECT CAST(tenant AS BLOB), bytes FROM shares INDEXED BY shares_bytes ORDER BY bytes DESC LIMIT ?1

-- name: oldest
-- PRIMARY KEY (tenant, finished_at, seq) of dead, in its order.
SELECT finished_at, seq, size FROM dead
WHERE tenant = CAST(?1 AS TEXT) AND (finished_at, seq) > (?2, ?3) AND finished_at <= ?4
ORDER BY finished_at, seq
LIMIT ?5

-- name: oldest_of_all
-- Index ended_age, in its order: of every FAILED job, ``held_until`` is 0.
SELECT finished_at, seq, size FROM ended INDEXED BY ended_age
WHERE state = 5 AND (finished_at, held_until, seq) > (?1, 0, ?2) AND finished_at <= ?3
ORDER BY finished_at, held_until, seq
LIMIT ?4
