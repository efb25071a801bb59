-- The least that a worker can recover from: payloads apart from the queue's order, and one lease for a whole batch.

-- name: schema
CREATE TABLE IF NOT EXISTS jobs (id bigint PRIMARY KEY, payload bytea NOT NULL);
CREATE TABLE IF NOT EXISTS ready (
    priority smallint NOT NULL, run_at bigint NOT NULL, id bigint NOT NULL, PRIMARY KEY (priority, run_at, id)
);
CREATE TABLE IF NOT EXISTS leases (batch bigint PRIMARY KEY, lease_until bigint NOT NULL, ids bigint[] NOT NULL)

-- name: session
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET plan_cache_mode = force_generic_plan

-- name: copy_jobs
COPY jobs (id, payload) FROM STDIN (FORMAT binary)

-- name: copy_ready
COPY ready (priority, run_at, id) FROM STDIN (FORMAT binary)

-- name: turn
-- Ends the jobs of one batch and takes the next: ready_pkey from its head, jobs_pkey by id, leases_pkey.
WITH ended AS (
    DELETE FROM leases WHERE batch = %(last)s
), gone AS (
    DELETE FROM jobs AS j USING unnest(%(done)s::bigint[]) AS d (id) WHERE j.id = d.id
), head AS MATERIALIZED (
    SELECT r.ctid AS place FROM ready AS r ORDER BY r.priority, r.run_at, r.id LIMIT {batch} FOR UPDATE SKIP LOCKED
), taken AS MATERIALIZED (
    DELETE FROM ready AS r USING head AS h WHERE r.ctid = h.place RETURNING r.id
), leased AS (
    INSERT INTO leases SELECT %(next)s, %(until)s, array_agg(t.id) FROM taken AS t HAVING count(*) > 0
)
SELECT j.id, j.payload FROM taken AS t JOIN jobs AS j ON j.id = t.id
