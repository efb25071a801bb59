-- One row from beginning to end, and no index knows its state: the claim's update stays on the page. Leases are found at the
-- head of the queue, where claims have to pass over them.

-- name: schema
CREATE TABLE jobs (
    id uuid PRIMARY KEY, qid integer NOT NULL, priority smallint NOT NULL, run_at bigint NOT NULL, epoch integer NOT NULL,
    state smallint NOT NULL, lease_until bigint, holder text, payload bytea NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX jobs_order ON jobs (qid, priority, run_at, id)

-- name: session
SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET plan_cache_mode = force_generic_plan

-- name: insert
INSERT INTO jobs
SELECT uuidv7(), 1, 0, %(now)s, 0, 0, NULL, NULL, convert_to(repeat('x', 200), 'UTF8') FROM generate_series(1, %(count)s)

-- name: claim
-- jobs_order from its head, then by place.
WITH head AS MATERIALIZED (
    SELECT j.ctid AS place FROM jobs AS j WHERE j.state = 0 AND j.qid = 1 AND j.run_at <= %(now)s
    ORDER BY j.qid, j.priority, j.run_at, j.id LIMIT {batch} FOR UPDATE SKIP LOCKED
)
UPDATE jobs AS j SET state = 1, epoch = j.epoch + 1, lease_until = %(now)s + 30000000, holder = 'holder'
FROM head AS h WHERE j.ctid = h.place
RETURNING j.id, j.payload

-- name: done
-- jobs_pkey by id.
DELETE FROM jobs AS j USING unnest(%(ids)s::uuid[]) AS d (id) WHERE j.id = d.id AND j.epoch = 1 AND j.state = 1
