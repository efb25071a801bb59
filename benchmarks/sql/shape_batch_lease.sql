-- As with lease rows, but a whole batch has one lease, which names its jobs.

-- name: schema
CREATE TABLE jobs (id uuid PRIMARY KEY, payload bytea NOT NULL);
CREATE TABLE ready (
    qid integer NOT NULL, priority smallint NOT NULL, run_at bigint NOT NULL, id uuid NOT NULL, epoch integer NOT NULL,
    PRIMARY KEY (qid, priority, run_at, id)
);
CREATE TABLE leases (batch bigint PRIMARY KEY, lease_until bigint NOT NULL, holder text NOT NULL, ids uuid[] NOT NULL);
CREATE INDEX leases_until ON leases (lease_until)

-- name: session
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET plan_cache_mode = force_generic_plan

-- name: insert
WITH made AS (
    INSERT INTO jobs SELECT uuidv7(), convert_to(repeat('x', 200), 'UTF8') FROM generate_series(1, %(count)s) RETURNING id
)
INSERT INTO ready SELECT 1, 0, %(now)s, id, 0 FROM made

-- name: claim
-- ready_pkey from its head, then by place; jobs_pkey by id.
WITH head AS MATERIALIZED (
    SELECT r.ctid AS place FROM ready AS r WHERE r.qid = 1 AND r.run_at <= %(now)s
    ORDER BY r.qid, r.priority, r.run_at, r.id LIMIT {batch} FOR UPDATE SKIP LOCKED
), taken AS MATERIALIZED (
    DELETE FROM ready AS r USING head AS h WHERE r.ctid = h.place RETURNING r.id
), lease AS (
    INSERT INTO leases SELECT %(number)s, %(now)s + 30000000, 'holder', array_agg(t.id) FROM taken AS t
)
SELECT j.id, j.payload FROM taken AS t JOIN jobs AS j ON j.id = t.id

-- name: done
-- leases_pkey, jobs_pkey by id.
WITH gone AS (
    DELETE FROM leases AS l WHERE l.batch = %(number)s
)
DELETE FROM jobs AS j USING unnest(%(ids)s::uuid[]) AS d (id) WHERE j.id = d.id
